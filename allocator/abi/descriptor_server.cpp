// See descriptor_server.hpp (V1..V5). One request and one answer are one message each (SOCK_SEQPACKET), so neither side
// has to put pieces together.
#include "abi/descriptor_server.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>

#include "base/errors.hpp"

namespace dymem {
namespace {

constexpr int kPatienceSeconds = 20;     // of a client
constexpr std::size_t kClientsMax = 64;  // at a time; more wait in the backlog, until others have been quiet for too long
constexpr std::chrono::seconds kQuietMax{5};
constexpr int kLookMs = 500;  // how often that is looked at
constexpr int kBacklog = 256;

struct Request {
  ExportToken token;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct State {
  std::mutex mutex;
  bool started = false;
  ServerName name = {};
  DescriptorSource source = nullptr;
};

State& state() {
  static State* const instance = new State;
  return *instance;
}

std::atomic<int> listening{-1};

void after_fork_in_child() {  // async-signal-safe
  const int fd = listening.exchange(-1);
  if (fd >= 0) close(fd);
}

socklen_t address_of(const ServerName& name, sockaddr_un* out) {
  static constexpr char kPrefix[] = "dymem-";
  static constexpr char kDigits[] = "0123456789abcdef";
  std::memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  char* at = out->sun_path + 1;  // a zero first: the abstract namespace
  at = static_cast<char*>(std::memcpy(at, kPrefix, sizeof kPrefix - 1)) + sizeof kPrefix - 1;
  for (unsigned char byte : name) *at++ = kDigits[byte >> 4], *at++ = kDigits[byte & 15];
  return static_cast<socklen_t>(at - reinterpret_cast<char*>(out));
}

bool same_user(int socket) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

union Control {
  cmsghdr header;
  char space[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
};

bool answer(int client, const DescriptorSource source) {
  Request request;
  const ssize_t got = recv(client, &request, sizeof request, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got != static_cast<ssize_t>(sizeof request) || request.count == 0 || request.count > kDescriptorsMax) return false;
  std::vector<int> fds;
  Answer said = Answer::ok;
  try {
    if (!source(request.token, request.first, request.count, &fds)) said = Answer::no_such_token;
    else if (fds.empty()) said = Answer::refused;
  } catch (...) {
    said = Answer::refused;
  }
  unsigned char byte = static_cast<unsigned char>(said);
  iovec part{&byte, 1};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.space;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  const bool sent = sendmsg(client, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
  for (int fd : fds) close(fd);
  return sent;
}

void serve(int listener, DescriptorSource source) {
  using Clock = std::chrono::steady_clock;
  std::vector<pollfd> watched{{listener, POLLIN, 0}};
  std::vector<Clock::time_point> heard{Clock::now()};  // of each, when it said something last
  const auto drop = [&](std::size_t i) {
    close(watched[i].fd);
    watched.erase(watched.begin() + static_cast<std::ptrdiff_t>(i));
    heard.erase(heard.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (;;) {
    const bool full = watched.size() > kClientsMax;
    watched[0].events = full ? 0 : POLLIN;
    if (poll(watched.data(), watched.size(), full ? kLookMs : -1) < 0) {
      if (errno != EINTR) usleep(10'000);
      continue;
    }
    const Clock::time_point now = Clock::now();
    for (std::size_t i = watched.size(); --i > 0;) {
      if (!watched[i].revents) {
        if (full && now - heard[i] > kQuietMax) drop(i);
      } else if ((watched[i].revents & POLLIN) && answer(watched[i].fd, source)) {
        heard[i] = now;
      } else {
        drop(i);
      }
    }
    if (!(watched[0].revents & POLLIN)) continue;
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) usleep(10'000);  // out of descriptors: the client waits
    else if (same_user(client)) watched.push_back({client, POLLIN, 0}), heard.push_back(Clock::now());
    else close(client);
  }
}

void* run(void*) {
  serve(listening.load(), state().source);
  return nullptr;
}

[[noreturn]] void cannot_start(const char* call) {
  throw Error("dymem: a tensor cannot be shared with other processes, because the socket for it cannot be opened (" +
              std::string(call) + ": " + std::strerror(errno) + "); send it from the CPU.");
}

}  // namespace

const ServerName& descriptor_server(DescriptorSource source) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.started) return s.name;
  if (getrandom(s.name.data(), s.name.size(), 0) != static_cast<ssize_t>(s.name.size())) cannot_start("getrandom");
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) cannot_start("socket");
  sockaddr_un address;
  const socklen_t size = address_of(s.name, &address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, kBacklog) != 0) {
    close(fd);
    cannot_start("bind");
  }
  s.source = source;
  listening.store(fd);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, nullptr, run, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error) {
    listening.store(-1);
    close(fd);
    errno = error;
    cannot_start("pthread_create");
  }
  pthread_setname_np(thread, "dymem-share");
  pthread_detach(thread);
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  s.started = true;
  return s.name;
}

DescriptorClient::DescriptorClient(const ServerName& name) {
  socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket_ < 0) return;
  const timeval patience{kPatienceSeconds, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);  // connecting waits for the backlog, too
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  int connected = 0;
  do connected = connect(socket_, reinterpret_cast<sockaddr*>(&address), size);
  while (connected < 0 && errno == EINTR);
  if (connected < 0) reached_ = errno == ECONNREFUSED ? Answer::nobody : Answer::broken;
  else reached_ = same_user(socket_) ? Answer::ok : Answer::another_user;
}

DescriptorClient::~DescriptorClient() {
  if (socket_ >= 0) close(socket_);
}

Answer DescriptorClient::fetch(const ExportToken& token, std::size_t first, std::size_t count, std::vector<int>* out) {
  if (reached_ != Answer::ok) return reached_;
  const Request request{token, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)};
  if (send(socket_, &request, sizeof request, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof request)) return Answer::broken;
  unsigned char byte = 0;
  iovec part{&byte, 1};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.space;
  message.msg_controllen = sizeof control.space;
  ssize_t got = 0;
  do got = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got >= 0)
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < fds; i++) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
        out->push_back(fd);
      }
    }
  const bool whole = got == 1 && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && byte <= int(Answer::broken);
  Answer said = whole ? static_cast<Answer>(byte) : Answer::broken;
  if (said == Answer::ok && out->size() != count) said = Answer::refused;  // descriptors of ours ran out, or fewer granules
  if (said != Answer::ok) {
    for (int fd : *out) close(fd);
    out->clear();
  }
  return said;
}

}  // namespace dymem
