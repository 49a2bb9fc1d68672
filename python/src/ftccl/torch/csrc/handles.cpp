#include "handles.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <tuple>

namespace ftccl_torch {

namespace {

constexpr const char* kFormat = "ftccl1";
constexpr size_t kNameDigits = 16;

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string hex_of(const unsigned char* bytes, size_t n) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < n; i++) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

std::string printable(std::string text) {
  for (char& c : text)
    if (c < ' ' || c > '~')
      c = '?';
  return text;
}

std::string name_of_number(uint64_t value) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; i++)
    bytes[i] = static_cast<unsigned char>(value >> (8 * i));
  return hex_of(bytes, sizeof bytes);
}

} // namespace

std::string random_name() {
  std::random_device device;
  return name_of_number(static_cast<uint64_t>(device()) << 32 | device());
}

std::string name_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a: for telling groups apart, not for secrets */
  for (unsigned char c : text)
    hash = (hash ^ c) * 0x100000001b3u;
  return name_of_number(hash);
}

std::string Handle::text() const {
  auto* bytes = reinterpret_cast<const unsigned char*>(id.internal);
  return std::string(kFormat) + "/" + process + "/" + group + "/" + std::to_string(rank) + "/" +
         hex_of(bytes, sizeof id.internal);
}

Handle Handle::parse(const std::string& text) {
  std::vector<std::string> part;
  std::stringstream in(text);
  for (std::string one; std::getline(in, one, '/');)
    part.push_back(one);
  bool good = part.size() == 5 && part[0] == kFormat && is_hex(part[1], kNameDigits) &&
              (part[2] == "-" || is_hex(part[2], kNameDigits)) && !part[3].empty() &&
              part[3].size() <= 7 &&
              part[3].find_first_not_of("0123456789") == std::string::npos &&
              is_hex(part[4], 2 * sizeof(ftcclUniqueId));
  TORCH_CHECK_VALUE(good, "ftccl: reconfigure: \"", printable(text.substr(0, 40)),
                    "\" is not a handle of get_reconfigure_handle() of this backend");
  Handle handle;
  handle.process = part[1];
  handle.group = part[2];
  handle.rank = std::stoi(part[3]);
  for (size_t i = 0; i < sizeof handle.id.internal; i++)
    handle.id.internal[i] = static_cast<char>(std::stoi(part[4].substr(2 * i, 2), nullptr, 16));
  return handle;
}

Plan make_plan(const std::vector<std::string>& handles, bool ordered) {
  Plan plan;
  std::set<std::string> processes;
  std::map<std::string, int> sizes;
  for (const std::string& text : handles) {
    plan.members.push_back(Handle::parse(text));
    const Handle& handle = plan.members.back();
    TORCH_CHECK_VALUE(processes.insert(handle.process).second,
                      "ftccl: reconfigure: two handles of the same process");
    if (handle.has_group())
      sizes[handle.group]++;
  }
  TORCH_CHECK_VALUE(!handles.empty(), "ftccl: reconfigure: no handles");
  int most = 0;
  for (const auto& [group, size] : sizes)
    if (size > most) {
      most = size;
      plan.base = group;
    }
  if (handles.size() == 1)
    plan.base.clear();
  if (!ordered)
    std::sort(plan.members.begin(), plan.members.end(), [&](const Handle& a, const Handle& b) {
      auto key = [&](const Handle& h) {
        return std::tuple(h.group != plan.base || !h.has_group(), h.group, h.rank, h.process);
      };
      return key(a) < key(b);
    });
  for (size_t i = 0; i < plan.members.size(); i++) {
    bool old = !plan.base.empty() && plan.members[i].group == plan.base;
    (old ? plan.old : plan.joiners).push_back(static_cast<int>(i));
  }
  plan.leader = plan.old.empty() ? 0 : plan.old[0];
  return plan;
}

} // namespace ftccl_torch
