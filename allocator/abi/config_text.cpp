// The text form of the configuration: "key:value,key:value", the same in DYMEM_CONF, dymem.Config and `dymem run`.
//
// One table lists the keys; parsing, printing and the sentence that names the valid keys all read it, so that they
// cannot differ. Sizes are integers of bytes or a number with a unit (KiB, MiB, GiB, TiB; kB, MB, GB, TB are decimal).
// Pure: no state, no locks.
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "abi/registry.hpp"

namespace dymem {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// What somebody wrote, for a sentence on one line.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    char code[5];
    if (std::iscntrl(static_cast<unsigned char>(c))) {
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += code;
    } else {
      out += c;
    }
  }
  return out;
}

[[noreturn]] void bad_value(std::string_view key, std::string_view value, const char* expected) {
  throw InvalidArgument("dymem: " + std::string(key) + " cannot be '" + shown(value) + "': give " + expected +
                        ".");
}

// A decimal number at the beginning of `text`, and where it ends; NaN if there is none. Never strtod: what that reads
// depends on the locale that the program has set, and it takes hexadecimal.
double decimal(std::string_view text, std::chars_format format, std::string_view* rest) {
  double number = 0;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number, format);
  *rest = text.substr(static_cast<std::size_t>(stop - text.data()));
  return error == std::errc() && std::isfinite(number) && text.front() != '-' ? number : std::nan("");
}

Bytes parse_size(std::string_view key, std::string_view value) {
  constexpr const char* kExpected = "a size such as 20GiB, 512MiB or a number of bytes (0 for none)";
  const std::string text = lower(value);
  if (text == "none") return 0;
  std::string_view rest;
  const double number = decimal(text, std::chars_format::fixed, &rest);
  if (std::isnan(number)) bad_value(key, value, kExpected);
  const std::string unit(trimmed(rest));
  if (unit.empty()) {  // bytes, exactly
    Bytes bytes = 0;
    auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
    if (error != std::errc() || stop != text.data() + text.size() || bytes > kRequestMax)
      bad_value(key, value, kExpected);
    return bytes;
  }
  struct Unit {
    const char* name;
    double bytes;
  };
  static constexpr Unit kUnits[] = {{"b", 1},    {"kib", 1024.0}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40},
                                    {"kb", 1e3}, {"mb", 1e6},     {"gb", 1e9},     {"tb", 1e12}};
  for (const Unit& u : kUnits)
    if (unit == u.name) {
      const double bytes = number * u.bytes;
      if (bytes > double(kRequestMax)) bad_value(key, value, kExpected);
      return static_cast<Bytes>(std::llround(bytes));
    }
  bad_value(key, value, kExpected);
}

bool parse_switch(std::string_view key, std::string_view value) {
  const std::string text = lower(value);
  if (text == "on" || text == "true" || text == "1" || text == "yes") return true;
  if (text == "off" || text == "false" || text == "0" || text == "no") return false;
  bad_value(key, value, "on or off");
}

double parse_ratio(std::string_view key, std::string_view value) {
  std::string_view rest;
  const double number = decimal(value, std::chars_format::general, &rest);
  if (!rest.empty() || !(number >= 0) || number > 1) bad_value(key, value, "a number from 0 to 1");
  return number;
}

int parse_count(std::string_view key, std::string_view value) {
  int number = 0;
  auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || stop != value.data() + value.size() || number < 1 || number > kDevicesMax)
    bad_value(key, value, "a number from 1 to 64");
  return number;
}

std::string number_text(double number) {
  char text[40];  // the shortest that reads back as the same number
  return std::string(text, std::to_chars(text, text + sizeof text, number).ptr);
}

struct ConfigKey {
  const char* name;
  void (*set)(ProcessConfig&, std::string_view key, std::string_view value);
  std::string (*get)(const ProcessConfig&);
};

std::string switch_text(bool on) { return on ? "on" : "off"; }

constexpr ConfigKey kKeys[] = {
    {"limit", [](ProcessConfig& c, std::string_view k, std::string_view v) { c.pool.limit = parse_size(k, v); },
     [](const ProcessConfig& c) { return std::to_string(c.pool.limit); }},
    {"backing",
     [](ProcessConfig& c, std::string_view k, std::string_view v) {
       const std::string text = lower(v);
       if (text == "auto") c.pool.backing = Backing::automatic;
       else if (text == "vmm") c.pool.backing = Backing::vmm;
       else if (text == "contiguous") c.pool.backing = Backing::contiguous;
       else bad_value(k, v, "auto, vmm or contiguous");
     },
     [](const ProcessConfig& c) -> std::string {
       return c.pool.backing == Backing::vmm ? "vmm" : c.pool.backing == Backing::contiguous ? "contiguous" : "auto";
     }},
    {"alias", [](ProcessConfig& c, std::string_view k, std::string_view v) { c.pool.alias = parse_switch(k, v); },
     [](const ProcessConfig& c) { return switch_text(c.pool.alias); }},
    {"wait", [](ProcessConfig& c, std::string_view k, std::string_view v) { c.pool.wait = parse_switch(k, v); },
     [](const ProcessConfig& c) { return switch_text(c.pool.wait); }},
    {"debug", [](ProcessConfig& c, std::string_view k, std::string_view v) { c.pool.debug = parse_switch(k, v); },
     [](const ProcessConfig& c) { return switch_text(c.pool.debug); }},
    {"grow_ratio",
     [](ProcessConfig& c, std::string_view k, std::string_view v) { c.pool.grow_ratio = parse_ratio(k, v); },
     [](const ProcessConfig& c) { return number_text(c.pool.grow_ratio); }},
    {"grow_slack",
     [](ProcessConfig& c, std::string_view k, std::string_view v) { c.pool.grow_slack = parse_size(k, v); },
     [](const ProcessConfig& c) { return std::to_string(c.pool.grow_slack); }},
    {"driver",
     [](ProcessConfig& c, std::string_view k, std::string_view v) {
       const std::string text = lower(v);
       if (text == "cuda") c.driver = DriverKind::cuda;
       else if (text == "emulated") c.driver = DriverKind::emulated;
       else bad_value(k, v, "cuda or emulated");
     },
     [](const ProcessConfig& c) -> std::string { return c.driver == DriverKind::cuda ? "cuda" : "emulated"; }},
    {"emulated_capacity",
     [](ProcessConfig& c, std::string_view k, std::string_view v) {
       c.emulated_capacity = parse_size(k, v);
       if (c.emulated_capacity == 0) bad_value(k, v, "a size above 0");
     },
     [](const ProcessConfig& c) { return std::to_string(c.emulated_capacity); }},
    {"emulated_devices",
     [](ProcessConfig& c, std::string_view k, std::string_view v) { c.emulated_devices = parse_count(k, v); },
     [](const ProcessConfig& c) { return std::to_string(c.emulated_devices); }},
    {"trace", [](ProcessConfig& c, std::string_view k, std::string_view v) { c.record_trace = parse_switch(k, v); },
     [](const ProcessConfig& c) { return switch_text(c.record_trace); }},
    {"mobility",
     [](ProcessConfig& c, std::string_view k, std::string_view v) {
       const std::string text = lower(v);
       if (text != "auto" && text != "off") bad_value(k, v, "off or auto");
       c.automatic_mobility = text == "auto";
     },
     [](const ProcessConfig& c) -> std::string { return c.automatic_mobility ? "auto" : "off"; }},
};

std::string key_list() {
  std::string names;
  for (const ConfigKey& key : kKeys) names += (names.empty() ? "" : ", ") + std::string(key.name);
  return names;
}

// Returns which key it was.
std::size_t set_one(ProcessConfig& config, std::string_view item) {
  const std::size_t colon = item.find(':');
  if (colon == std::string_view::npos)
    throw InvalidArgument("dymem: '" + shown(item) + "' is not key:value; the valid keys are " + key_list() +
                          ".");
  const std::string_view name = trimmed(item.substr(0, colon));
  const std::string_view value = trimmed(item.substr(colon + 1));
  for (const ConfigKey& key : kKeys)
    if (name == key.name) {
      key.set(config, name, value);
      return static_cast<std::size_t>(&key - kKeys);
    }
  throw InvalidArgument("dymem: there is no configuration key '" + shown(name) + "'; the valid keys are " +
                        key_list() + ".");
}

}  // namespace

ProcessConfig parse_config(const std::string& text) {
  ProcessConfig config;
  std::string_view rest(text);
  bool seen[std::size(kKeys)] = {};
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = trimmed(rest.substr(0, comma));
    if (!item.empty()) {
      bool& twice = seen[set_one(config, item)];
      if (twice) throw InvalidArgument("dymem: '" + shown(item) + "' sets a key that was set before it.");
      twice = true;
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (config.pool.debug && config.pool.backing == Backing::contiguous)
    throw InvalidArgument(
        "dymem: debug:on maps each block by itself, which backing:contiguous cannot; leave one of the two out.");
  return config;
}

std::string config_to_string(const ProcessConfig& config) {
  std::string text;
  for (const ConfigKey& key : kKeys) text += (text.empty() ? "" : ",") + std::string(key.name) + ":" + key.get(config);
  return text;
}

const std::vector<std::string>& config_keys() {
  static const auto* names = [] {
    auto* list = new std::vector<std::string>;
    for (const ConfigKey& key : kKeys) list->emplace_back(key.name);
    return list;
  }();
  return *names;
}

}  // namespace dymem
