// What the driver's memory calls cost on this card, what they refuse, and what they do beside running work.
//   costs OUTPUT_FOLDER       exit 0: measured; 2: it could not run
// Times are the host's, in microseconds, around one call; medians over the repetitions given.
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "kernels.cuh"
#include "probe.hpp"

namespace probe {
namespace {

template <typename F>
double timed(const F& call) {
  const double start = now_us();
  call();
  return now_us() - start;
}

// create / map / access / second view / unmap / release for one handle size.
std::string handle_costs(size_t size, bool exportable) {
  const int repetitions = size <= 64 * kMiB ? 40 : size <= 256 * kMiB ? 12 : 6;
  std::vector<double> creates, maps, accesses, alias_maps, alias_accesses, alias_unmaps, unmaps, releases;
  const CUdeviceptr at = reserve(2 * size);
  for (int i = -1; i < repetitions; ++i) {  // the first one warms and is not counted
    CUmemGenericAllocationHandle handle = 0;
    const double c = timed([&] { handle = create(size, 0, exportable); });
    const double m = timed([&] { map(at, size, handle); });
    const double a = timed([&] { set_access(at, size); });
    const double am = timed([&] { map(at + size, size, handle); });
    const double aa = timed([&] { set_access(at + size, size); });
    const double au = timed([&] { CHECKED(driver::cuMemUnmap(at + size, size)); });
    const double u = timed([&] { CHECKED(driver::cuMemUnmap(at, size)); });
    const double r = timed([&] { CHECKED(driver::cuMemRelease(handle)); });
    if (i < 0) continue;
    creates.push_back(c), maps.push_back(m), accesses.push_back(a), alias_maps.push_back(am);
    alias_accesses.push_back(aa), alias_unmaps.push_back(au), unmaps.push_back(u), releases.push_back(r);
  }
  CHECKED(driver::cuMemAddressFree(at, 2 * size));
  std::printf("  %5zu MiB %s: create %.1f map %.1f access %.1f | 2nd view: map %.1f access %.1f unmap %.1f | unmap %.1f release %.1f\n",
              size / kMiB, exportable ? "exportable" : "plain     ", quantile(creates, .5), quantile(maps, .5),
              quantile(accesses, .5), quantile(alias_maps, .5), quantile(alias_accesses, .5),
              quantile(alias_unmaps, .5), quantile(unmaps, .5), quantile(releases, .5));
  JsonObject row;
  row.put_int("mib", size / kMiB).put_bool("exportable", exportable).put_int("repetitions", repetitions);
  row.raw("create", spread(creates)).raw("map", spread(maps)).raw("set_access", spread(accesses));
  row.raw("alias_map", spread(alias_maps)).raw("alias_set_access", spread(alias_accesses));
  row.raw("alias_unmap", spread(alias_unmaps)).raw("unmap", spread(unmaps)).raw("release", spread(releases));
  return row.text();
}

// Several adjacent mappings: one call over all of them against one call each. `aliases`: the handles are mapped
// elsewhere already, as when a region is stitched.
std::string adjacent_costs(size_t size, int count, bool aliases) {
  std::vector<CUmemGenericAllocationHandle> handles;
  for (int i = 0; i < count; ++i) handles.push_back(create(size));
  const CUdeviceptr home = reserve(size * count), at = reserve(size * count);
  auto map_all = [&](CUdeviceptr base) {
    for (int i = 0; i < count; ++i) map(base + i * size, size, handles[i]);
  };
  if (aliases) {
    map_all(home);
    set_access(home, size * count);
  }
  std::vector<double> map_each, access_one, access_each, unmap_one, unmap_each;
  for (int i = 0; i < 12; ++i) {
    map_each.push_back(timed([&] { map_all(at); }));
    access_one.push_back(timed([&] { set_access(at, size * count); }));
    unmap_one.push_back(timed([&] { CHECKED(driver::cuMemUnmap(at, size * count)); }));
    map_all(at);
    access_each.push_back(timed([&] {
      for (int k = 0; k < count; ++k) set_access(at + k * size, size);
    }));
    unmap_each.push_back(timed([&] {
      for (int k = 0; k < count; ++k) CHECKED(driver::cuMemUnmap(at + k * size, size));
    }));
  }
  if (aliases) CHECKED(driver::cuMemUnmap(home, size * count));
  for (auto handle : handles) CHECKED(driver::cuMemRelease(handle));
  CHECKED(driver::cuMemAddressFree(home, size * count));
  CHECKED(driver::cuMemAddressFree(at, size * count));
  std::printf("  %3d x %3zu MiB%s: map each %.0f | access: one call %.0f, each %.0f | unmap: one call %.0f, each %.0f\n",
              count, size / kMiB, aliases ? " (second views)" : "", quantile(map_each, .5), quantile(access_one, .5),
              quantile(access_each, .5), quantile(unmap_one, .5), quantile(unmap_each, .5));
  JsonObject row;
  row.put_int("mib", size / kMiB).put_int("handles", count).put_bool("second_views", aliases);
  row.raw("map_each", spread(map_each)).raw("access_one_call", spread(access_one));
  row.raw("access_each", spread(access_each)).raw("unmap_one_call", spread(unmap_one));
  row.raw("unmap_each", spread(unmap_each));
  return row.text();
}

// What D1, D3, D4, D5 of the driver's contract say CUDA refuses or allows; the answer is CUDA's.
std::string rules() {
  JsonObject out;
  auto put = [&](const char* what, const std::string& answer) {
    std::printf("  %-62s %s\n", what, answer.c_str());
    out.put(what, answer);
  };
  const size_t size = 2 * kGranule;
  const CUmemAccessDesc access = access_for(0);
  const CUdeviceptr at = reserve(4 * size);
  const CUmemGenericAllocationHandle handle = create(size);
  size_t granularity = 0;
  const CUmemAllocationProp prop = granule_properties(0, true);
  for (auto [flag, name] : {std::pair{CU_MEM_ALLOC_GRANULARITY_MINIMUM, "granularity, minimum"},
                            std::pair{CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, "granularity, recommended"}}) {
    CHECKED(driver::cuMemGetAllocationGranularity(&granularity, &prop, flag));
    put(name, std::to_string(granularity));
  }
  put("map half a handle", error_name(driver::cuMemMap(at, kGranule, 0, handle, 0)));
  put("map at an offset into a handle", error_name(driver::cuMemMap(at, kGranule, kGranule, handle, 0)));
  put("map at an address not aligned to 2 MiB", error_name(driver::cuMemMap(at + 65536, size, 0, handle, 0)));
  map(at, size, handle);
  put("map over a mapping", error_name(driver::cuMemMap(at, size, 0, handle, 0)));
  put("map a second time elsewhere", error_name(driver::cuMemMap(at + size, size, 0, handle, 0)));
  put("access to part of a mapping", error_name(driver::cuMemSetAccess(at, kGranule, &access, 1)));
  put("access to two adjacent mappings", error_name(driver::cuMemSetAccess(at, 2 * size, &access, 1)));
  put("access to a range with a gap behind", error_name(driver::cuMemSetAccess(at, 3 * size, &access, 1)));
  put("access once more", error_name(driver::cuMemSetAccess(at, size, &access, 1)));
  put("unmap part of a mapping", error_name(driver::cuMemUnmap(at, kGranule)));
  put("unmap two adjacent mappings in one call", error_name(driver::cuMemUnmap(at, 2 * size)));
  put("unmap what is not mapped", error_name(driver::cuMemUnmap(at, size)));
  put("free part of the addresses", error_name(driver::cuMemAddressFree(at, size)));
  put("free the addresses when empty", error_name(driver::cuMemAddressFree(at, 4 * size)));
  // Each in addresses of its own: what these leave behind, if allowed, is anyone's guess.
  const CUdeviceptr gap = reserve(4 * size), full = reserve(4 * size);
  map(gap, size, handle);
  put("unmap a range with a gap behind", error_name(driver::cuMemUnmap(gap, 3 * size)));
  put("... which took the mapping away (mapping there again)", error_name(driver::cuMemMap(gap, size, 0, handle, 0)));
  map(full, size, handle);
  put("free the addresses with a mapping in them", error_name(driver::cuMemAddressFree(full, 4 * size)));
  CHECKED(driver::cuMemRelease(handle));

  // D4: bytes of a released handle stay taken until its last mapping is gone, and stay readable.
  const size_t big = 512 * kMiB;
  size_t before = 0, mapped = 0, released = 0, after = 0, total = 0;
  const CUdeviceptr base = reserve(big);
  CHECKED(cudaMemGetInfo(&before, &total));
  const CUmemGenericAllocationHandle block = create(big);
  map(base, big, block);
  set_access(base, big);
  CHECKED(cudaMemGetInfo(&mapped, &total));
  CHECKED(driver::cuMemRelease(block));
  CHECKED(cudaMemGetInfo(&released, &total));
  CHECKED(cudaMemset(reinterpret_cast<void*>(base), 1, big));
  CHECKED(cudaDeviceSynchronize());
  CHECKED(driver::cuMemUnmap(base, big));
  CHECKED(cudaMemGetInfo(&after, &total));
  CHECKED(driver::cuMemAddressFree(base, big));
  put("MiB taken: mapped / handle released / unmapped (512 MiB handle)",
      std::to_string((before - mapped) / kMiB) + " / " + std::to_string((long long)(before - released) / (long long)kMiB) +
          " / " + std::to_string(((long long)before - (long long)after) / (long long)kMiB));

  // Export and import within this process; bytes are the same memory.
  const CUmemGenericAllocationHandle shared = create(kGranule, 0, true);
  int fd = -1;
  CUresult export_code = CUDA_SUCCESS;
  const double export_us = timed([&] {
    export_code = driver::cuMemExportToShareableHandle(&fd, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  });
  put("export a handle", error_name(export_code));
  CUmemGenericAllocationHandle imported = 0;
  CUresult import_code = CUDA_SUCCESS;
  const double import_us = timed([&] {
    import_code = driver::cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(uintptr_t(fd)),
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  });
  put("import an exported handle in the same process", error_name(import_code));
  if (import_code == CUDA_SUCCESS) {
    const CUdeviceptr mine = reserve(kGranule), theirs = reserve(kGranule);
    map(mine, kGranule, shared);
    map(theirs, kGranule, imported);
    set_access(mine, kGranule);
    set_access(theirs, kGranule);
    uint32_t wrong = 0, *bad = nullptr;
    CHECKED(cudaMalloc(&bad, sizeof wrong));
    CHECKED(cudaMemset(bad, 0, sizeof wrong));
    fill<<<32, 256>>>(reinterpret_cast<uint32_t*>(mine), kGranule / 4, 99);
    verify_grid<<<32, 256>>>(reinterpret_cast<uint32_t*>(theirs), kGranule / 4, 99, bad);
    LAUNCHED();
    CHECKED(cudaMemcpy(&wrong, bad, sizeof wrong, cudaMemcpyDeviceToHost));
    put("words that differ through the imported handle", std::to_string(wrong));
    CHECKED(cudaFree(bad));
    for (CUdeviceptr view : {mine, theirs}) {
      CHECKED(driver::cuMemUnmap(view, kGranule));
      CHECKED(driver::cuMemAddressFree(view, kGranule));
    }
    CHECKED(driver::cuMemRelease(imported));
  }
  if (fd >= 0) close(fd);
  CHECKED(driver::cuMemRelease(shared));
  out.put("export_us", export_us).put("import_us", import_us);
  const CUmemGenericAllocationHandle plain = create(kGranule, 0, false);
  put("export a handle not made exportable",
      error_name(driver::cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
  CHECKED(driver::cuMemRelease(plain));

  // More than there is: refused cleanly, and the next call works.
  CUmemGenericAllocationHandle huge = 0;
  const size_t too_much = total / kGranule * kGranule + 64 * kGranule;
  put("create more than the device has", error_name(driver::cuMemCreate(&huge, too_much, &prop, 0)));
  return out.text();
}

std::string addresses() {
  JsonObject out;
  for (size_t gib : {1, 64, 1024, 16384}) {
    std::vector<double> reserves, frees;
    for (int i = 0; i < 10; ++i) {
      CUdeviceptr at = 0;
      CUresult code = CUDA_SUCCESS;
      const double us = timed([&] { code = driver::cuMemAddressReserve(&at, gib << 30, 0, 0, 0); });
      if (code != CUDA_SUCCESS) break;
      reserves.push_back(us);
      frees.push_back(timed([&] { CHECKED(driver::cuMemAddressFree(at, gib << 30)); }));
    }
    out.raw("reserve_" + std::to_string(gib) + "_gib", spread(reserves));
    out.raw("free_" + std::to_string(gib) + "_gib", spread(frees));
    std::printf("  reserve %6zu GiB: %.1f us, free %.1f us%s\n", gib, quantile(reserves, .5), quantile(frees, .5),
                reserves.empty() ? "  REFUSED" : "");
  }
  size_t largest = 0;
  for (size_t tib = 1; tib <= 256; tib *= 2) {
    CUdeviceptr at = 0;
    if (driver::cuMemAddressReserve(&at, tib << 40, 0, 0, 0) != CUDA_SUCCESS) break;
    largest = tib;
    CHECKED(driver::cuMemAddressFree(at, tib << 40));
  }
  std::vector<CUdeviceptr> pieces;
  for (int i = 0; i < 256; ++i) {
    CUdeviceptr at = 0;
    if (driver::cuMemAddressReserve(&at, size_t{1} << 40, 0, 0, 0) != CUDA_SUCCESS) break;
    pieces.push_back(at);
  }
  for (CUdeviceptr at : pieces) CHECKED(driver::cuMemAddressFree(at, size_t{1} << 40));
  std::printf("  largest single reservation %zu TiB; in pieces of 1 TiB: %zu TiB (256 tried)\n", largest, pieces.size());
  out.put_int("largest_tib", largest).put_int("pieces_of_1_tib", pieces.size());
  return out.text();
}

std::string events() {
  cudaStream_t stream;
  CHECKED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<double> creates, records, queries_busy, queries_done, waits, destroys;
  std::vector<cudaEvent_t> made(1000);
  for (auto& event : made) creates.push_back(timed([&] { CHECKED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }));
  for (auto event : made) records.push_back(timed([&] { CHECKED(cudaEventRecord(event, stream)); }));
  CHECKED(cudaStreamSynchronize(stream));
  for (auto event : made) queries_done.push_back(timed([&] { CHECKED(cudaEventQuery(event)); }));
  spin<<<1, 1, 0, stream>>>(20'000'000);
  LAUNCHED();
  CHECKED(cudaEventRecord(made[0], stream));
  for (int i = 0; i < 1000; ++i) queries_busy.push_back(timed([&] { (void)cudaEventQuery(made[0]); }));
  (void)cudaGetLastError();  // the queries' "not ready"
  const bool was_busy = still_running(stream);
  for (int i = 0; i < 200; ++i) waits.push_back(timed([&] { CHECKED(cudaStreamWaitEvent(stream, made[0], 0)); }));
  CHECKED(cudaStreamSynchronize(stream));
  for (auto event : made) destroys.push_back(timed([&] { CHECKED(cudaEventDestroy(event)); }));
  CHECKED(cudaStreamDestroy(stream));
  std::printf("  event: create %.2f record %.2f query (done) %.2f query (not ready%s) %.2f stream wait %.2f us\n",
              quantile(creates, .5), quantile(records, .5), quantile(queries_done, .5), was_busy ? "" : "?",
              quantile(queries_busy, .5), quantile(waits, .5));
  JsonObject out;
  out.raw("create", spread(creates)).raw("record", spread(records)).raw("query_done", spread(queries_done));
  out.raw("query_not_ready", spread(queries_busy)).raw("stream_wait", spread(waits)).raw("destroy", spread(destroys));
  return out.text();
}

// The clock's own cost, to be subtracted by the reader from the smallest figures.
double clock_us() {
  std::vector<double> times;
  for (int i = 0; i < 1000; ++i) times.push_back(timed([] {}));
  return quantile(times, 0.5);
}

// One pass of memory calls as an allocator would make them: a new granule, a second view of an old one, both undone.
void churn(CUdeviceptr at, CUmemGenericAllocationHandle old) {
  const CUmemGenericAllocationHandle fresh = create(kGranule);
  map(at, kGranule, fresh);
  map(at + kGranule, kGranule, old);
  set_access(at, 2 * kGranule);
  CHECKED(driver::cuMemUnmap(at, 2 * kGranule));
  CHECKED(driver::cuMemRelease(fresh));
}

// Memory calls beside a long kernel: do they wait for it?
std::string beside_a_kernel() {
  cudaStream_t stream;
  CHECKED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  AliasedGranule old(1);
  const CUdeviceptr at = reserve(2 * kGranule);
  churn(at, old.handle());
  struct Call {
    const char* name;
    std::vector<double> idle, busy;
    bool waited = false;
  };
  std::vector<Call> calls = {{"create"}, {"map"}, {"set_access"}, {"alias_map"}, {"alias_set_access"},
                             {"alias_unmap"}, {"unmap"}, {"release"}, {"reserve"}, {"free_addresses"}};
  for (bool busy : {false, true})
    for (int i = 0; i < 10; ++i) {
      if (busy) {
        spin<<<132, 256, 0, stream>>>(30'000'000);
        LAUNCHED();
      }
      size_t next = 0;
      auto step = [&](const std::function<void()>& call) {
        const double us = timed(call);
        (busy ? calls[next].busy : calls[next].idle).push_back(us);
        if (busy && !still_running(stream)) calls[next].waited = true;
        ++next;
      };
      CUmemGenericAllocationHandle handle = 0;
      CUdeviceptr extra = 0;
      step([&] { handle = create(kGranule); });
      step([&] { map(at, kGranule, handle); });
      step([&] { set_access(at, kGranule); });
      step([&] { map(at + kGranule, kGranule, old.handle()); });
      step([&] { set_access(at + kGranule, kGranule); });
      step([&] { CHECKED(driver::cuMemUnmap(at + kGranule, kGranule)); });
      step([&] { CHECKED(driver::cuMemUnmap(at, kGranule)); });
      step([&] { CHECKED(driver::cuMemRelease(handle)); });
      step([&] { extra = reserve(kGranule); });
      step([&] { CHECKED(driver::cuMemAddressFree(extra, kGranule)); });
      CHECKED(cudaStreamSynchronize(stream));
    }
  CHECKED(driver::cuMemAddressFree(at, 2 * kGranule));
  CHECKED(cudaStreamDestroy(stream));
  JsonObject out;
  for (const Call& call : calls) {
    std::printf("  %-17s idle %.1f, beside a 30 ms kernel %.1f us%s\n", call.name, quantile(call.idle, .5),
                quantile(call.busy, .5), call.waited ? "   WAITED for the kernel" : "");
    out.raw(call.name, JsonObject()
                           .raw("idle", spread(call.idle))
                           .raw("busy", spread(call.busy))
                           .put_bool("waited_for_kernel", call.waited)
                           .text());
  }
  return out.text();
}

// Does churn on another thread slow launches, or running kernels (its unmaps flush address translations)?
std::string churn_and_work() {
  cudaStream_t stream;
  CHECKED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  AliasedGranule old(1);
  const CUdeviceptr at = reserve(2 * kGranule);
  const uint32_t words = 256 * kMiB;  // 1 GiB
  uint32_t* data = nullptr;
  CHECKED(cudaMalloc(&data, size_t(words) * 4));
  cudaEvent_t begin, end;
  CHECKED(cudaEventCreate(&begin));
  CHECKED(cudaEventCreate(&end));
  JsonObject out;
  for (bool with_churn : {false, true}) {
    std::atomic<bool> stop{false};
    std::atomic<long> rounds{0};
    std::thread other;
    if (with_churn)
      other = std::thread([&] {
        CHECKED(cudaSetDevice(0));
        while (!stop) {
          churn(at, old.handle());
          ++rounds;
        }
      });
    std::vector<double> launches, turnarounds, kernels;
    for (int i = 0; i < 3000; ++i) {
      launches.push_back(timed([&] { spin<<<1, 1, 0, stream>>>(0); }));
      if (i % 64 == 63) CHECKED(cudaStreamSynchronize(stream));
    }
    for (int i = 0; i < 1000; ++i)
      turnarounds.push_back(timed([&] {
        spin<<<1, 1, 0, stream>>>(0);
        CHECKED(cudaStreamSynchronize(stream));
      }));
    for (int i = 0; i < 200; ++i) {
      CHECKED(cudaEventRecord(begin, stream));
      fill<<<132 * 8, 256, 0, stream>>>(data, words, i);
      CHECKED(cudaEventRecord(end, stream));
      CHECKED(cudaEventSynchronize(end));
      float ms = 0;
      CHECKED(cudaEventElapsedTime(&ms, begin, end));
      kernels.push_back(ms * 1e3);
    }
    stop = true;
    if (other.joinable()) other.join();
    const std::string name = with_churn ? "beside_churn" : "alone";
    std::printf("  %-13s launch %.2f (p99 %.1f), launch+wait %.1f (p99 %.1f), 1 GiB write %.0f us; %ld rounds of churn\n",
                name.c_str(), quantile(launches, .5), quantile(launches, .99), quantile(turnarounds, .5),
                quantile(turnarounds, .99), quantile(kernels, .5), rounds.load());
    out.raw(name, JsonObject()
                      .put("launch_us", quantile(launches, .5))
                      .put("launch_p99_us", quantile(launches, .99))
                      .put("launch_and_wait_us", quantile(turnarounds, .5))
                      .put("launch_and_wait_p99_us", quantile(turnarounds, .99))
                      .put("write_1_gib_us", quantile(kernels, .5))
                      .put_int("churn_rounds", rounds.load())
                      .text());
  }
  CHECKED(cudaFree(data));
  CHECKED(driver::cuMemAddressFree(at, 2 * kGranule));
  return out.text();
}

// Setting access again (after the first view), and access for a peer.
std::string peer_costs() {
  int devices = 0, can = 0;
  CHECKED(cudaGetDeviceCount(&devices));
  if (devices > 1) CHECKED(cudaDeviceCanAccessPeer(&can, 1, 0));
  if (!can) return "null";
  CHECKED(cudaSetDevice(1));
  CHECKED(cudaFree(nullptr));
  CHECKED(cudaSetDevice(0));
  JsonObject out;
  for (size_t mib : {2, 64, 1024}) {
    const size_t size = mib * kMiB;
    const CUdeviceptr at = reserve(size);
    std::vector<double> own, peer, both;
    const CUmemAccessDesc access[2] = {access_for(0), access_for(1)};
    for (int i = 0; i < 10; ++i) {
      const CUmemGenericAllocationHandle handle = create(size);
      map(at, size, handle);
      own.push_back(timed([&] { set_access(at, size, 0); }));
      peer.push_back(timed([&] { set_access(at, size, 1); }));
      CHECKED(driver::cuMemUnmap(at, size));
      map(at, size, handle);
      both.push_back(timed([&] { CHECKED(driver::cuMemSetAccess(at, size, access, 2)); }));
      CHECKED(driver::cuMemUnmap(at, size));
      CHECKED(driver::cuMemRelease(handle));
    }
    CHECKED(driver::cuMemAddressFree(at, size));
    std::printf("  %4zu MiB: access own %.1f, then peer %.1f; both in one call %.1f us\n", mib, quantile(own, .5),
                quantile(peer, .5), quantile(both, .5));
    out.raw(std::to_string(mib) + "_mib", JsonObject()
                                              .raw("own", spread(own))
                                              .raw("peer", spread(peer))
                                              .raw("both_in_one_call", spread(both))
                                              .text());
  }
  return out.text();
}

int run(const std::string& folder) {
  std::printf("costs of handles (medians, us)\n");
  std::vector<std::string> handles, adjacent;
  for (bool exportable : {false, true})
    for (size_t mib : {2, 4, 16, 32, 64, 256, 1024}) handles.push_back(handle_costs(mib * kMiB, exportable));
  std::printf("several adjacent handles (us for all)\n");
  for (bool aliases : {false, true}) {
    for (int count : {1, 2, 4, 8, 16, 32, 64}) adjacent.push_back(adjacent_costs(2 * kMiB, count, aliases));
    for (int count : {2, 8, 16}) adjacent.push_back(adjacent_costs(32 * kMiB, count, aliases));
  }
  std::printf("rules\n");
  const std::string rule_text = rules();
  std::printf("addresses\n");
  const std::string address_text = addresses();
  std::printf("events\n");
  const std::string event_text = events();
  std::printf("beside a running kernel\n");
  const std::string beside_text = beside_a_kernel();
  std::printf("work beside churn of memory calls on another thread\n");
  const std::string churn_text = churn_and_work();
  std::printf("peers\n");
  const std::string peer_text = peer_costs();
  write_file(folder + "/costs.json",
             "{\n  \"machine\": " + machine().text() + ",\n  \"clock_us\": " + std::to_string(clock_us()) +
                 ",\n  \"handles\": " + json_array(handles) + ",\n  \"adjacent\": " + json_array(adjacent) +
                 ",\n  \"rules\": " + rule_text + ",\n  \"addresses\": " + address_text + ",\n  \"events\": " +
                 event_text + ",\n  \"beside_a_kernel\": " + beside_text + ",\n  \"churn\": " + churn_text +
                 ",\n  \"peers\": " + peer_text + "\n}\n");
  std::printf("costs: done\n");
  return 0;
}

}  // namespace
}  // namespace probe

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: costs OUTPUT_FOLDER\n");
    return 2;
  }
  CHECKED(cudaSetDevice(0));
  CHECKED(cudaFree(nullptr));
  return probe::run(argv[1]);
}
