#include "pool/tag.hpp"

#include <map>
#include <mutex>

#include "base/errors.hpp"

namespace dymem {

thread_local constinit Tag current_tag = kUntagged;

Tag tag_number(const std::string& name) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const names = new std::map<std::string, Tag>;
  if (name.empty()) throw InvalidArgument("dymem: a tag is a name; give one such as 'weights'");
  std::lock_guard lock(*mutex);
  if (const auto it = names->find(name); it != names->end()) return it->second;
  if (names->size() >= 255)
    throw InvalidArgument("dymem: there are 255 tags already; use a few names for kinds of memory, not one a tensor");
  return (*names)[name] = static_cast<Tag>(names->size() + 1);
}

Tag set_current_tag(Tag tag) {
  const Tag before = current_tag;
  current_tag = tag;
  return before;
}

}  // namespace dymem
