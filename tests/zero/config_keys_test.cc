// SPDX-License-Identifier: Apache-2.0
// Every row of the table of keys does what its kind says.
#include "zero/config_keys.h"

#include <fstream>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/zero/load_config.h"

namespace tessera::zero {
namespace {

TEST(ConfigKeys, FormATreeWithOneSentenceForEachLeaf) {
  std::set<std::string_view> paths;
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " is there twice";
    EXPECT_EQ(key.sentence.empty(), key.kind == KeyKind::kBlock) << key.path;
    EXPECT_THAT(std::string(key.sentence), ::testing::Not(::testing::EndsWith("."))) << key.path;
    if (const size_t dot = key.path.rfind('.'); dot != std::string_view::npos) {
      const ConfigKey* block = FindConfigKey(key.path.substr(0, dot));
      ASSERT_NE(block, nullptr) << key.path;
      EXPECT_EQ(block->kind, KeyKind::kBlock) << key.path;
    }
    if (key.kind == KeyKind::kAlias) {
      const ConfigKey* target = FindConfigKey(key.sentence);
      ASSERT_NE(target, nullptr) << key.path;
      EXPECT_NE(target->kind, KeyKind::kAlias) << key.path;
    }
  }
}

// One line of zero/CONFIG.md.
std::string Documented(const ConfigKey& key) {
  const std::string path = Str("`", key.path, "`");
  std::string legal(key.legal);
  for (size_t at = 0; (at = legal.find('|', at)) != std::string::npos; at += 4) legal.replace(at, 1, " or ");
  switch (key.kind) {
    case KeyKind::kWorks:
      return Str("| ", path, " | works | ", key.sentence, " |");
    case KeyKind::kBlock:
      return Str("| ", path, " | block | |");
    case KeyKind::kNoEffect:
      return Str("| ", path, " | no effect | ", key.sentence, " |");
    case KeyKind::kOneValue:
      return Str("| ", path, " | no effect | only `", legal, "`: ", key.sentence, " |");
    case KeyKind::kRefused:
      return Str("| ", path, " | refused | ", key.sentence, legal.empty() ? "" : Str("; `", legal, "` passes"), " |");
    case KeyKind::kAlias:
      return Str("| ", path, " | alias | of `", key.sentence, "` |");
  }
  return "";
}

TEST(ConfigKeys, AreAllInTheDocumentAsTheyAre) {
  std::ifstream file(TESSERA_CONFIG_DOCUMENT);
  ASSERT_TRUE(file.good()) << TESSERA_CONFIG_DOCUMENT;
  std::string table, expected;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| `")) table += line + "\n";
  }
  for (const ConfigKey& key : ConfigKeys()) expected += Documented(key) + "\n";
  EXPECT_EQ(table, expected) << "the rows of zero/CONFIG.md must be:\n" << expected;
}

TEST(ConfigKeys, ThatWorkEachChangeTheConfig) {
  const std::map<std::string_view, std::string_view> values = {
      {"optimizer.type", "\"SGD\""},
      {"scheduler.type", "\"constant\""},
      {"tessera.reducer", "\"canonical\""},
      {"tessera.keep_last_unit", "false"},
      {"bf16.check_grad_overflow", "false"},
      {"data_types.param_dtype", "\"fp64\""},
      {"data_types.grad_accum_dtype", "\"bf16\""},
      {"communication_data_type", "\"fp16\""},
      {"fp16.min_loss_scale", "0.5"},
  };
  const std::map<std::string_view, std::string_view> files = {
      {"optimizer.params", "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.1}}}"},
      {"scheduler.params", "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.1}}}"},
  };
  const Config none = Load("{}");
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.kind != KeyKind::kWorks) continue;
    const auto file = files.find(key.path);
    const auto value = values.find(key.path);
    const std::string text = file != files.end() ? std::string(file->second)
                                                 : Nested(key.path, value != values.end()             ? value->second
                                                                    : key.type == ValueType::kBoolean ? "true"
                                                                                                      : "3");
    const Config config = Load(text);
    const Config other = file != files.end()
                             ? Load(file->first == "optimizer.params" ? "{\"optimizer\": {\"type\": \"Adam\"}}"
                                                                      : "{\"scheduler\": {\"type\": \"WarmupLR\"}}")
                             : none;
    EXPECT_NE(Digest(config), Digest(other)) << key.path << " has no effect: " << text;
    if (file == files.end()) {
      EXPECT_EQ(config.origins, (std::map<std::string, std::string>{{std::string(key.path), "ds.json:1"}}));
    }
  }
}

TEST(ConfigKeys, WithAnotherSpellingSetTheSameField) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.kind != KeyKind::kAlias || key.type == ValueType::kObject) continue;
    const std::string_view value = FindConfigKey(key.sentence)->type == ValueType::kBoolean ? "true" : "17";
    const Config a = Load(Nested(key.path, value)), b = Load(Nested(key.sentence, value));
    EXPECT_EQ(Digest(a), Digest(b)) << key.path;
    EXPECT_EQ(a.origins, b.origins) << key.path;
  }
  EXPECT_TRUE(Load("{\"bfloat16\": {\"enabled\": true}}").bf16.enabled);
}

std::string_view AnyValue(ValueType type) {
  switch (type) {
    case ValueType::kBoolean:
      return "false";
    case ValueType::kText:
      return "\"some\"";
    case ValueType::kObject:
      return "{\"inner\": 1}";
    default:
      return "17";
  }
}

// A value that `legal` allows, or "": a block switched off, or the first alternative.
std::string LegalValue(const ConfigKey& key) {
  const std::string_view legal = key.legal.substr(0, key.legal.find('|'));
  const size_t equals = legal.find('=');
  if (equals != std::string_view::npos) {
    const std::string_view value = legal.substr(equals + 1);
    return Str("{\"inner\": 1, \"", legal.substr(0, equals), "\": ", value == "none" ? "\"none\"" : value, "}");
  }
  return key.type == ValueType::kText ? Str("\"", legal, "\"") : std::string(legal);
}

TEST(ConfigKeys, WithoutEffectGiveOneNoticeAndChangeNothing) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.kind != KeyKind::kNoEffect && key.kind != KeyKind::kOneValue) continue;
    const std::string value = key.kind == KeyKind::kOneValue ? LegalValue(key) : std::string(AnyValue(key.type));
    const bool in_optimizer = key.path == "optimizer.legacy_fusion";  // that block needs a type
    const Config none = Load(in_optimizer ? R"({"optimizer": {"type": "Adam"}})" : "{}");
    const Config config =
        Load(in_optimizer ? R"({"optimizer": {"type": "Adam", "legacy_fusion": true}})" : Nested(key.path, value));
    EXPECT_EQ(Digest(config), Digest(none)) << key.path;
    ASSERT_EQ(config.notices.size(), 2u) << key.path;  // the other one: clipping
    EXPECT_EQ(config.notices[0], Str(key.path, " has no effect: ", key.sentence));
  }
}

TEST(ConfigKeys, WithOneLegalValueRefuseAnyOther) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.kind != KeyKind::kOneValue) continue;
    const std::string other = key.legal == "false" ? "true" : std::string(AnyValue(key.type));
    EXPECT_EQ(ErrorOf(Nested(key.path, other)),
              Str("ds.json:1: ", key.path, ": got ", other, ", expected ", key.legal, ": ", key.sentence));
  }
}

TEST(ConfigKeys, ThatAreRefusedSayWhyUnlessTheyAreOff) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.kind != KeyKind::kRefused) continue;
    const size_t equals = key.legal.find('=');
    const std::string on = equals != std::string_view::npos
                               ? Str("{\"", key.legal.substr(0, equals), "\": \"on\"}")
                               : std::string(key.type == ValueType::kBoolean ? "true" : AnyValue(key.type));
    EXPECT_EQ(ErrorOf(Nested(key.path, on)),
              Str("ds.json:1: ", key.path, ": not supported: ", key.sentence, "; leave the key out"));
    if (key.legal.empty()) continue;
    const Config config = Load(Nested(key.path, LegalValue(key)));
    EXPECT_EQ(Digest(config), Digest(Config())) << key.path;
    EXPECT_EQ(config.notices.size(), 1u) << key.path;
  }
}

}  // namespace
}  // namespace tessera::zero
