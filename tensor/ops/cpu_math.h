// SPDX-License-Identifier: Apache-2.0
// Mathematics for CPU kernels: exp, log, tanh and the activations built on them, with their derivatives.
//
// The f32 forms have no branches, so that loops over them vectorise. They are within a few units in the last place, down
// to subnormal results; the derivatives, which have zeros of their own, within a few ulp of 1; GELU's tanh form far left
// of 0, where it is the exponential of a rounded cube, within as many more as that exponent has. NaN gives NaN, and the
// infinities give the limits. The f64 forms call the C library. Local to the including file, as cpu_kernel.h is.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/half.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

// Cody-Waite reduction to |r| <= ln2 / 2 and a polynomial of degree 7 (S. Moshier's Cephes); the result is assembled
// through the exponent bits.
TESSERA_ALWAYS_INLINE float Exp(float x) {
  constexpr float kLowest = -104.0f, kHighest = 88.72284f;  // beyond: 0 and infinity
  const float clamped = x < kLowest ? kLowest : (x > kHighest ? kHighest : x);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = clamped * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n is in [-150, 128], which one exponent field cannot hold.
  const int32_t whole = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound));
  const int32_t half = whole >> 1;
  const float a = std::bit_cast<float>((half + 127) << 23);
  const float b = std::bit_cast<float>((whole - half + 127) << 23);
  const float result = p * a * b;
  return x > kHighest ? INFINITY : (x == x ? result : x);
}
TESSERA_ALWAYS_INLINE double Exp(double x) { return std::exp(x); }

// x = m * 2^n with m in [sqrt(1/2), sqrt(2)) and a polynomial in m - 1 (Cephes).
TESSERA_ALWAYS_INLINE float Log(float x) {
  const bool subnormal = x < 0x1p-126f;
  const float scaled = subnormal ? x * 0x1p23f : x;
  constexpr uint32_t kSqrtHalf = 0x3F3504F3u;
  const uint32_t bits = std::bit_cast<uint32_t>(scaled) - kSqrtHalf;
  const float n = static_cast<float>(static_cast<int32_t>(bits) >> 23) - (subnormal ? 23.0f : 0.0f);
  const float f = std::bit_cast<float>((bits & 0x007FFFFFu) + kSqrtHalf) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float square = f * f;
  const float small = p * f * square - n * 2.12194440e-4f - 0.5f * square;
  const float result = f + small + n * 0.693359375f;
  const float positive = x < INFINITY ? result : x;  // infinity and NaN
  return x > 0 ? positive : (x == 0 ? -INFINITY : (x == x ? NAN : x));
}
TESSERA_ALWAYS_INLINE double Log(double x) { return std::log(x); }

TESSERA_ALWAYS_INLINE float Tanh(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float large = 1.0f - 2.0f / (Exp(2.0f * magnitude) + 1.0f);
  const float s = x * x;
  float p = -5.70498872745e-3f;  // near 0 the line above would lose the relative accuracy
  p = p * s + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  const float small = p * s * x + x;
  return magnitude < 0.625f ? small : (x < 0 ? -large : (x == x ? large : x));
}
TESSERA_ALWAYS_INLINE double Tanh(double x) { return std::tanh(x); }

// The value and what it lacks to 1, both to full relative accuracy.
template <class A>
struct Share {
  A value, rest;
};

// 1 / (1 + exp(-x)).
template <class A>
TESSERA_ALWAYS_INLINE Share<A> Logistic(A x) {
  const A e = Exp(x < 0 ? x : -x);
  const A one = A(1) / (A(1) + e), other = e / (A(1) + e);
  return x < 0 ? Share<A>{other, one} : Share<A>{one, other};
}

// factor * share without inf * 0: a share of 0 wins.
template <class A>
TESSERA_ALWAYS_INLINE A ShareOf(A factor, A share) {
  return share == 0 ? A(0) : factor * share;
}

template <class A>
TESSERA_ALWAYS_INLINE A Sigmoid(A x) {
  return Logistic(x).value;
}

// x * sigmoid(x), and its derivative s * (1 + x * (1 - s)).
template <class A>
TESSERA_ALWAYS_INLINE A Silu(A x) {
  return ShareOf(x, Sigmoid(x));
}
template <class A>
TESSERA_ALWAYS_INLINE A SiluDerivative(A x) {
  const Share<A> s = Logistic(x);
  return s.value + ShareOf(x, s.value * s.rest);
}

// x * (1 + tanh(u)) / 2 = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
// D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", 2016.
template <class A>
TESSERA_ALWAYS_INLINE A GeluTanh(A x) {
  constexpr A kTwice = A(1.5957691216057307117597842397375);  // 2 sqrt(2 / pi)
  return ShareOf(x, Sigmoid(kTwice * (x + A(0.044715) * x * x * x)));
}
template <class A>
TESSERA_ALWAYS_INLINE A GeluTanhDerivative(A x) {
  constexpr A kTwice = A(1.5957691216057307117597842397375);
  const Share<A> s = Logistic(kTwice * (x + A(0.044715) * x * x * x));
  return s.value + ShareOf(x * kTwice * (A(1) + A(3 * 0.044715) * x * x), s.value * s.rest);
}

// The standard normal distribution at x.
template <class A>
struct Normal {
  A density, below;  // exp(-x^2 / 2) / sqrt(2 pi), and its integral up to x
};

// With t = |x| / sqrt(2): (1 + 2 t) exp(t^2) erfc(t) is a polynomial in (t - 2) / (t + 2), fitted on [0, 10.5] to 1.2e-8
// (the form is that of M. Shepherd, J. Laframboise, 1981). x^2 is split, or its rounding would be felt in the tails.
TESSERA_ALWAYS_INLINE Normal<float> NormalAt(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float m = magnitude > 14.5f ? 14.5f : magnitude;  // the tail beyond is 0 in f32
  const float high = std::bit_cast<float>(std::bit_cast<uint32_t>(m) & 0xFFFFF000u);
  const float d = 0.5f * (m - high) * (m + high);
  const float correction = 1.0f - d * (1.0f - d * (0.5f - d * (0.16666667f - d * 0.041666668f)));
  const float e = Exp(-0.5f * (high * high)) * correction;
  const float t = m * 0.70710678f;
  const float q = (t - 2.0f) / (t + 2.0f);
  float p = 2.686109285e-5f;
  p = p * q - 3.622954924e-4f;
  p = p * q - 1.24995839e-3f;
  p = p * q + 1.273455174e-3f;
  p = p * q + 8.635760434e-3f;
  p = p * q - 8.045565182e-3f;
  p = p * q - 5.420453925e-2f;
  p = p * q + 1.640534215e-1f;
  p = p * q - 1.660314027e-1f;
  p = p * q - 9.276391145e-2f;
  p = p * q + 1.276978393f;
  const float tail = 0.5f * p * e / (1.0f + 2.0f * t);
  return {0.39894228f * e, x < 0 ? tail : 1.0f - tail};
}
TESSERA_ALWAYS_INLINE Normal<double> NormalAt(double x) {
  return {0.39894228040143267793994605993438 * std::exp(-0.5 * x * x),
          0.5 * std::erfc(x * -0.70710678118654752440084436210485)};
}

template <class A>
TESSERA_ALWAYS_INLINE A GeluErf(A x) {
  return ShareOf(x, NormalAt(x).below);
}
template <class A>
TESSERA_ALWAYS_INLINE A GeluErfDerivative(A x) {
  const Normal<A> normal = NormalAt(x);
  return normal.below + ShareOf(x, normal.density);
}

}  // namespace
}  // namespace tessera::ops::cpu::TESSERA_ISA
