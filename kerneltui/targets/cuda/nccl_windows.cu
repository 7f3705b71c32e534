/* Makes NCCL windows over the buffers of a rank, and a device communicator beside them: trusted code that is
 * loaded only for kernels which ask for it. It is compiled against the installed header, whose structures
 * go to kernels by value, so that header and library must be of one version; that was looked at before.
 *
 * All calls are collective: every rank makes the same ones in the same order.
 */
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>
#include <cstdio>
#include <new>

namespace {

/* NCCL keeps the text of its last warning, which says more than the code. */
int failed(const char *what, ncclResult_t code, char *text, uint64_t room) {
    const char *more = ncclGetLastError(nullptr);
    std::snprintf(text, room, "%s: %s%s%s", what, ncclGetErrorString(code), more && *more ? ": " : "",
                  more ? more : "");
    return 1;
}

} // namespace

extern "C" {

int ht_nccl_version() { return NCCL_VERSION_CODE; }

/* Registers `bytes` at `place`; 0, or 1 with the reason in `text`. */
int ht_nccl_register(void *communicator, void *place, uint64_t bytes, void **window, char *text, uint64_t room) {
    ncclWindow_t made = nullptr;
    const ncclResult_t code = ncclCommWindowRegister(static_cast<ncclComm_t>(communicator), place, bytes, &made,
                                                     NCCL_WIN_COLL_SYMMETRIC);
    (void)cudaGetLastError(); /* the first window makes a device communicator, too; see below */
    if (code != ncclSuccess) return failed("ncclCommWindowRegister", code, text, room);
    if (!made) {
        std::snprintf(text, room, "NCCL makes no windows on this machine");
        return 1;
    }
    *window = made;
    return 0;
}

int ht_nccl_deregister(void *communicator, void *window) {
    return ncclCommWindowDeregister(static_cast<ncclComm_t>(communicator), static_cast<ncclWindow_t>(window));
}

/* A device communicator with so many barriers of the LSA team, and signals of the network. */
int ht_nccl_device(void *communicator, uint32_t barriers, uint32_t signals, void **device, char *text,
                   uint64_t room) {
    ncclDevCommRequirements wanted = {};
    wanted.lsaBarrierCount = static_cast<int>(barriers);
    if (signals) {
        wanted.ginForceEnable = true;
        wanted.ginSignalCount = static_cast<int>(signals);
    }
    ncclDevComm *made = new (std::nothrow) ncclDevComm{};
    if (!made) {
        std::snprintf(text, room, "no memory");
        return 1;
    }
    const ncclResult_t code = ncclDevCommCreate(static_cast<ncclComm_t>(communicator), &wanted, made);
    (void)cudaGetLastError(); /* it leaves an error behind that is none */
    if (code != ncclSuccess || (signals && !made->ginContextCount)) {
        delete made;
        if (signals) {
            std::snprintf(text, room, "needs NCCL with GIN: %s",
                          code != ncclSuccess ? ncclGetErrorString(code) : "there is no network context");
            return 1;
        }
        return failed("ncclDevCommCreate", code, text, room);
    }
    *device = made;
    return 0;
}

int ht_nccl_device_end(void *communicator, void *device) {
    ncclDevComm *made = static_cast<ncclDevComm *>(device);
    const ncclResult_t code = ncclDevCommDestroy(static_cast<ncclComm_t>(communicator), made);
    delete made;
    return code;
}

} /* extern "C" */
