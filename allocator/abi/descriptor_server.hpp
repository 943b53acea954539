// File descriptors for other processes of the same user: how a receiver gets at the granules of a shared tensor.
//
// A descriptor cannot be written into a message of Python's; it has to be sent over a unix socket. So the first tensor
// that a process shares starts one thread that answers whoever shows a token. No privilege is needed, as it would be to
// take descriptors out of another process (pidfd_getfd), which containers forbid.
//   V1  The socket lives in the abstract namespace under a random name: no file to leave behind. Processes in other
//       network namespaces (containers) do not see it.
//   V2  Both ends ask the kernel who the other is and speak only with their own user; tokens cannot be guessed.
//   V3  The thread waits for nobody in particular: a client that says nothing keeps no other one waiting, and where many
//       do, they are hung up on after seconds. It holds no lock while it waits, runs no Python, takes no signals, and ends
//       with the process.
//   V4  A forked child closes its copy of the socket, so that the name dies with the process that answers to it.
//   V5  A message carries at most kDescriptorsMax descriptors, so many granules cost either side few at a time.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "pool/exported_memory.hpp"

namespace dymem {

constexpr std::size_t kDescriptorsMax = 32;

using ServerName = std::array<unsigned char, 16>;

// Descriptors number `first` to `first + count` of what a token names, made on request and closed after sending; false:
// it names nothing. Called on the server's thread.
using DescriptorSource = bool (*)(const ExportToken& token, std::size_t first, std::size_t count, std::vector<int>* out);

// Starts the thread at the first call. Throws Error.
const ServerName& descriptor_server(DescriptorSource source);

enum class Answer : std::uint8_t {
  ok,
  nobody,        // nobody listens: the process ended, or lives in another network namespace
  another_user,  // somebody else does
  no_such_token,
  refused,  // its driver would not export, or it has no descriptors left
  broken,   // it stopped answering
};

// A conversation with the server of another process, or of this one.
class DescriptorClient {
 public:
  explicit DescriptorClient(const ServerName& name);
  ~DescriptorClient();
  DescriptorClient(const DescriptorClient&) = delete;
  DescriptorClient& operator=(const DescriptorClient&) = delete;
  // At most kDescriptorsMax; the caller closes them. Waits some seconds at most.
  Answer fetch(const ExportToken& token, std::size_t first, std::size_t count, std::vector<int>* out);

 private:
  int socket_ = -1;
  Answer reached_ = Answer::nobody;
};

}  // namespace dymem
