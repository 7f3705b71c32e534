/* A driver that captures what a test adds to a stream, with the structures of the real cuda.h. */
#include <cuda.h>
#include <cstring>
#include <string>
#include <vector>

namespace {
struct Node {
    CUgraphNodeType type;
    std::string symbol;
    unsigned grid[3], block[3], shared;
    unsigned launched[3]; /* the cluster of the launch, 0 without */
    int compiled;         /* the width of the cluster that the kernel was compiled for, 0 without */
    bool by_kernel;       /* launched by a CUkernel, not a CUfunction */
};
std::vector<Node> *nodes;
bool capturing, broken;
} // namespace

extern "C" {
void fake_begin() {
    delete nodes;
    nodes = new std::vector<Node>;
    capturing = broken = false;
}
void fake_launch(const char *symbol, unsigned gx, unsigned gy, unsigned bx, unsigned shared, unsigned cluster,
                 int compiled, int by_kernel) {
    if (!capturing) return;
    nodes->push_back({CU_GRAPH_NODE_TYPE_KERNEL, symbol, {gx, gy, 1}, {bx, 1, 1}, shared,
                      {cluster, cluster ? 1u : 0u, cluster ? 1u : 0u}, compiled, by_kernel != 0});
}
void fake_other(int type) {
    if (capturing) nodes->push_back({CUgraphNodeType(type), "", {}, {}, 0, {}, 0, false});
}
void fake_break() { broken = true; }
int fake_capturing() { return capturing; }

CUresult cuGetErrorName(CUresult, const char **text) { return *text = "FAKE", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char **text) { return *text = "refused", CUDA_SUCCESS; }

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    if (stream != CUstream(0x51) || mode != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    capturing = true;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream, CUgraph *graph) {
    capturing = false;
    *graph = broken ? nullptr : CUgraph(nodes);
    return broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *found, size_t *count) {
    if (!found) return *count = nodes->size(), CUDA_SUCCESS;
    for (size_t i = 0; i < *count; ++i) found[i] = CUgraphNode(&(*nodes)[i]);
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    return *type = reinterpret_cast<Node *>(node)->type, CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *params) {
    Node *node = reinterpret_cast<Node *>(handle);
    std::memset(params, 0, sizeof *params);
    params->gridDimX = node->grid[0], params->gridDimY = node->grid[1], params->gridDimZ = node->grid[2];
    params->blockDimX = node->block[0], params->blockDimY = node->block[1], params->blockDimZ = node->block[2];
    params->sharedMemBytes = node->shared;
    if (node->by_kernel) params->kern = CUkernel(node);
    else params->func = CUfunction(node);
    return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    return *function = CUfunction(kernel), kernel ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuFuncGetName(const char **name, CUfunction function) {
    return *name = reinterpret_cast<Node *>(function)->symbol.c_str(), CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    const Node *node = reinterpret_cast<Node *>(function);
    switch (which) {
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 168; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: *value = node->compiled; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: *value = node->compiled ? 1 : 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUlaunchAttributeID which, CUlaunchAttributeValue *value) {
    if (which != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return CUDA_ERROR_INVALID_VALUE;
    std::memset(value, 0, sizeof *value);
    const unsigned *sides = reinterpret_cast<Node *>(node)->launched;
    value->clusterDim.x = sides[0], value->clusterDim.y = sides[1], value->clusterDim.z = sides[2];
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction, int threads, size_t shared) {
    const size_t by_shared = 233472 / (1024 + 1024 + shared), by_registers = 65536 / (168 * threads);
    *count = int(by_shared < by_registers ? by_shared : by_registers);
    return CUDA_SUCCESS;
}
/* 132 SMs in seven groups of 18 and one of 6: a cluster lies in one group. */
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction, const CUlaunchConfig *config) {
    if (config->numAttrs != 1 || config->attrs->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || config->hStream)
        return CUDA_ERROR_INVALID_VALUE;
    const auto &size = config->attrs->value.clusterDim;
    if (config->gridDimX % size.x || !config->blockDimX) return CUDA_ERROR_INVALID_VALUE;
    const int cluster = int(size.x * size.y * size.z);
    *count = 7 * (18 / cluster) + 6 / cluster;
    return CUDA_SUCCESS;
}
}
