// Reading and writing trace files; the format and its rules are in the header.
#include "trace/trace_io.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace dymem {
namespace {

constexpr char kMagic[8] = {'D', 'Y', 'M', 'E', 'M', 'T', 'R', 'C'};
constexpr std::uint32_t kEndianTag = 0x01020304;

struct FileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t endian;
  std::uint32_t header_bytes;
  std::uint32_t event_bytes;
  std::uint64_t events;
  std::uint64_t dropped;
  std::uint64_t granularity;
  std::int32_t device;
  std::uint32_t zero[3];
  std::uint64_t checksum;
};
static_assert(sizeof(FileHeader) == 72);
constexpr std::size_t kHeaderHashed = offsetof(FileHeader, checksum);

std::uint64_t fnv1a(std::uint64_t hash, const void* bytes, std::size_t n) {
  const char* p = static_cast<const char*>(bytes);
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, p + i, 8);
    hash = (hash ^ word) * 0x100000001b3ULL;
  }
  return hash;
}

std::uint64_t checksum(const FileHeader& header, const std::vector<TraceEvent>& events) {
  const std::uint64_t hash = fnv1a(0xcbf29ce484222325ULL, &header, kHeaderHashed);
  return fnv1a(hash, events.data(), events.size() * sizeof(TraceEvent));
}

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

std::string quoted(const std::string& path) { return "'" + path + "'"; }

bool known_kind(TraceKind kind) { return kind <= TraceKind::segment_free; }

}  // namespace

bool is_trace_magic(const void* bytes, std::uint64_t n) {
  return n >= sizeof kMagic && std::memcmp(bytes, kMagic, sizeof kMagic) == 0;
}

Trace read_trace(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) throw InvalidArgument("cannot open trace " + quoted(path) + ": " + std::strerror(errno));
  struct stat about{};
  if (fstat(fileno(file.get()), &about) != 0 || !S_ISREG(about.st_mode))
    throw InvalidArgument("trace " + quoted(path) + " is not a regular file; name the trace file itself");
  const auto size = static_cast<std::uint64_t>(about.st_size);

  FileHeader header{};
  const std::size_t got = std::fread(&header, 1, sizeof header, file.get());
  if (!is_trace_magic(&header, got))
    throw InvalidArgument(quoted(path) +
                          " is not a dymem trace (it does not begin with DYMEMTRC); PyTorch snapshots are read by "
                          "dymem.trace.load");
  if (got < sizeof header)
    throw InvalidArgument("trace " + quoted(path) + " is truncated: " + std::to_string(got) +
                          " bytes, less than its header; record or copy it again");
  if (header.endian != kEndianTag)
    throw InvalidArgument("trace " + quoted(path) +
                          " was written on a machine of the other byte order; record it again on this kind of machine");
  if (header.version != kTraceVersion)
    throw InvalidArgument("trace " + quoted(path) + " has format version " + std::to_string(header.version) +
                          ", this dymem reads version " + std::to_string(kTraceVersion) +
                          "; use the dymem that wrote it");
  if (header.header_bytes != sizeof header || header.event_bytes != sizeof(TraceEvent))
    throw InvalidArgument("trace " + quoted(path) + " is damaged: its header gives impossible sizes; copy it again");
  const std::uint64_t room = size < sizeof header ? 0 : (size - sizeof header) / sizeof(TraceEvent);
  if (header.events > room)
    throw InvalidArgument("trace " + quoted(path) + " is truncated: " + std::to_string(header.events) +
                          " events announced, " + std::to_string(room) + " there; record or copy it again");
  if (size != sizeof header + header.events * sizeof(TraceEvent))
    throw InvalidArgument("trace " + quoted(path) + " is damaged: bytes follow the last event; copy it again");

  Trace trace;
  trace.device = header.device;
  trace.granularity = header.granularity;
  trace.dropped = header.dropped;
  trace.events.resize(header.events);
  if (std::fread(trace.events.data(), sizeof(TraceEvent), header.events, file.get()) != header.events)
    throw InvalidArgument("cannot read trace " + quoted(path) + " to its end: " + std::strerror(errno));
  if (checksum(header, trace.events) != header.checksum)
    throw InvalidArgument("trace " + quoted(path) + " is damaged: its checksum does not match; copy it again");
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (!known_kind(trace.events[i].kind))
      throw InvalidArgument("trace " + quoted(path) + " holds an event of unknown kind " +
                            std::to_string(int(trace.events[i].kind)) + " at index " + std::to_string(i) +
                            "; use the dymem that wrote it");
  }
  return trace;
}

void write_trace(const std::string& path, const Trace& trace) {
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kTraceVersion;
  header.endian = kEndianTag;
  header.header_bytes = sizeof header;
  header.event_bytes = sizeof(TraceEvent);
  header.events = trace.events.size();
  header.dropped = trace.dropped;
  header.granularity = trace.granularity;
  header.device = trace.device;
  header.checksum = checksum(header, trace.events);

  // Whole or not at all; but a link, pipe or device is written through and stays what it is.
  static std::atomic<unsigned> writes{0};
  struct stat there {};
  const bool through = lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  const std::string beside =
      through ? path : path + ".part" + std::to_string(getpid()) + "." + std::to_string(writes++);
  int error = 0;
  {
    File file(std::fopen(beside.c_str(), "wb"));
    if (!file) throw InvalidArgument("cannot write trace " + quoted(path) + ": " + std::strerror(errno));
    const std::size_t n = trace.events.size();
    const bool ok = std::fwrite(&header, sizeof header, 1, file.get()) == 1 &&
                    std::fwrite(trace.events.data(), sizeof(TraceEvent), n, file.get()) == n &&
                    std::fflush(file.get()) == 0;
    if (!ok) error = errno;
  }
  if (!through && error == 0 && std::rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    if (!through) std::remove(beside.c_str());
    throw InvalidArgument("cannot write trace " + quoted(path) + ": " + std::strerror(error));
  }
}

}  // namespace dymem
