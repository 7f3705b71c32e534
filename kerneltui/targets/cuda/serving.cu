/* Calls as a server makes them, and calls without a pause; the timing harness stands before this text. */

namespace {

constexpr uint64_t kMostInFlight = 2; /* chunks that are enqueued and not done, of calls without a pause */

/* Reads more than the cache holds, so that nothing of the buffers is left in it. Reading leaves no lines
 * behind that must be written back while a call runs. */
__global__ void read_over(const uint4 *words, uint64_t count, unsigned *sink) {
    unsigned sum = 0;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += uint64_t(gridDim.x) * blockDim.x) {
        const uint4 word = __ldcg(words + i);
        sum += word.x ^ word.y ^ word.z ^ word.w;
    }
    if (sum == 0x9E3779B9u) *sink = sum; /* the sum of the buffer's zeros is 0: never written */
}

void pause_for(uint64_t nanoseconds) {
    timespec t;
    t.tv_sec = static_cast<time_t>(nanoseconds / 1000000000u);
    t.tv_nsec = static_cast<long>(nanoseconds % 1000000000u);
    nanosleep(&t, nullptr);
}

} // namespace

extern "C" {

/* Single calls, each after a pause in which the device is idle. Calls take turns: one is launched as a
 * server launches it, and its host measured; the next is held back by the gate, and the device measured. */
struct ht_serving {
    ht_sample *call; /* what each is made from; epoch, gate and buffer set count up */
    const uint64_t *gaps_ns;
    uint64_t count;
    const void *evict; /* what is read before each pause, or nothing: the cache stays warm */
    uint64_t evict_bytes;
    uint64_t *launch_ns;  /* of calls 0, 2, 4...: the host in `run` */
    uint64_t *latency_ns; /* of calls 0, 2, 4...: from before `run` until everything is done */
    uint64_t *device_ns;  /* of calls 1, 3, 5... */
};

/* Empties the second-level cache of what calls work on. */
int ht_evict(ht_device *device, const void *place, uint64_t bytes, ht_failure *failure, int32_t *code) {
    read_over<<<528, 512, 0, device->own>>>(static_cast<const uint4 *>(place), bytes / 16,
                                            reinterpret_cast<unsigned *>(device->sum) + 1);
    const cudaError_t e = cudaStreamSynchronize(device->own);
    return e == cudaSuccess ? HT_DONE : cuda_failure(e, "the cache cannot be emptied", failure, code);
}

/* Device memory that holds zeros, or nothing. */
void *ht_allocate_zeros(uint64_t bytes) {
    void *place = ht_allocate(bytes);
    if (place && cudaMemset(place, 0, bytes) != cudaSuccess) {
        ht_release(place);
        return nullptr;
    }
    return place;
}

static int serve_one(ht_sample *s, uint64_t *launch_ns, uint64_t *latency_ns, ht_failure *failure) {
    Slot &slot = static_cast<Slot *>(s->control)[s->rank];
    cudaStream_t stream = s->device->stream;
    if (!meet_again(s, 1)) return HT_LATE;
    slot.begun.store(s->epoch + 1, std::memory_order_relaxed);
    const uint64_t begin = now_ns();
    const int result = guarded([&] { return s->run(s->state, s->first_set, s->epoch, stream); }, &s->code, failure);
    const uint64_t launched = now_ns();
    const cudaError_t e = cudaStreamSynchronize(stream);
    const uint64_t end = now_ns();
    if (result != HT_DONE) return result;
    if (e != cudaSuccess) return cuda_failure(e, "the kernel failed on the device", failure, &s->code);
    slot.finished.store(s->epoch + 1, std::memory_order_relaxed);
    *launch_ns = launched - begin;
    *latency_ns = end - begin;
    return HT_DONE;
}

int ht_serve(ht_serving *serving, ht_failure *failure) {
    ht_sample *call = serving->call;
    for (uint64_t i = 0; i < serving->count; ++i) {
        ht_sample s = *call;
        s.gate += i;
        s.epoch += i;
        s.first_set = static_cast<uint32_t>((call->first_set + i) % call->sets);
        s.calls = 1;
        int result = HT_DONE;
        if (serving->evict)
            result = ht_evict(s.device, serving->evict, serving->evict_bytes, failure, &s.code);
        if (result == HT_DONE) {
            pause_for(serving->gaps_ns[i]);
            if (i % 2 == 0) {
                result = serve_one(&s, serving->launch_ns + i / 2, serving->latency_ns + i / 2, failure);
            } else {
                result = run_sample(&s, failure);
                serving->device_ns[i / 2] = s.ends_ns[0] - s.start_ns;
                if (s.unheld) call->unheld = 1;
            }
        }
        if (result != HT_DONE) {
            call->code = s.code;
            call->late_rank = s.late_rank;
            call->failed_call = i;
            return result;
        }
    }
    return HT_DONE;
}

/* So many calls without a pause, enqueued in chunks; the times of the device before the first and after the last
 * are in `start_ns` and `ends_ns`, the time that the host needed to enqueue them is in `enqueue_ns`. All ranks make
 * equally many, since none can go on without the others. */
int ht_sustain(ht_sample *s, uint64_t calls, uint64_t chunk, ht_failure *failure) {
    Board *board = s->device->board;
    cudaStream_t stream = s->device->stream;
    int result = prepare(s, failure);
    if (result != HT_DONE) return result;
    for (uint64_t i = 0; i < kMostStamps; ++i) board->stamps[i] = 0;
    if (!meet_again(s, 1)) return HT_LATE;
    uint64_t done = 0, chunks = 0, made = 0, first = 0, last = 0, enqueueing = 0;
    uint32_t set = s->first_set;
    stamp<<<1, 1, 0, stream>>>(&board->stamps[chunks++ % kMostStamps]);
    while (made < calls || done < chunks) {
        if (made < calls) {
            const uint64_t begin = now_ns();
            for (uint64_t i = 0; i < chunk && made < calls; ++i, ++made) {
                result = guarded([&] { return s->run(s->state, set, s->epoch + made, stream); }, &s->code, failure);
                if (result != HT_DONE) {
                    s->failed_call = made;
                    return result;
                }
                if (++set == s->sets) set = 0;
            }
            stamp<<<1, 1, 0, stream>>>(&board->stamps[chunks++ % kMostStamps]);
            enqueueing += now_ns() - begin;
            if (chunks - done <= kMostInFlight) continue;
        }
        result = wait_for(s, &board->stamps[done % kMostStamps], 1, failure);
        if (result != HT_DONE) return result;
        last = board->stamps[done % kMostStamps];
        if (done == 0) first = last;
        board->stamps[done++ % kMostStamps] = 0;
    }
    const cudaError_t e = cudaDeviceSynchronize();
    if (e != cudaSuccess) return cuda_failure(e, "the kernel failed on the device", failure, &s->code);
    static_cast<Slot *>(s->control)[s->rank].finished.store(s->epoch + made, std::memory_order_relaxed);
    s->start_ns = first;
    s->ends_ns[0] = last;
    s->enqueue_ns = enqueueing;
    return HT_DONE;
}

} /* extern "C" */
