// SPDX-License-Identifier: Apache-2.0
// A borrowed callable: two pointers, no heap, no <functional>. Valid only while the callable lives, so use it for
// parameters, never for members.
#pragma once

#include <type_traits>
#include <utility>

namespace tessera {

template <class Signature>
class FunctionRef;

template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>) __attribute__((always_inline))
  FunctionRef(Callable&& callable)  // NOLINT: implicit on purpose
      : object_(const_cast<void*>(static_cast<const void*>(&callable))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<Callable>*>(object))(std::forward<Args>(args)...);
        }) {}

  __attribute__((always_inline)) Result operator()(Args... args) const {
    return call_(object_, std::forward<Args>(args)...);
  }

 private:
  void* object_;
  Result (*call_)(void*, Args...);
};

}  // namespace tessera
