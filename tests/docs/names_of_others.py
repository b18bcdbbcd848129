# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The names of other libraries that have a row on the pages docs/reference/names_of_*.md."""

import re


def words(text):
    return re.sub(r"^#.*", "", text, flags=re.M).split()


# PyTorch 2.9: the names of its documentation. Members have the name of their class, options of torchrun their dashes.
PYTORCH = words("""
# torch.distributed
init_process_group init_method timeout world_size rank store group_name pg_options device_id default_pg_timeout MASTER_ADDR MASTER_PORT WORLD_SIZE
RANK LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK is_available is_mpi_available is_nccl_available is_gloo_available is_ucc_available is_xccl_available
is_backend_available is_initialized is_torchelastic_launched get_rank get_world_size get_node_local_rank get_backend get_backend_config get_default_backend_for_device get_pg_count
Backend BackendConfig register_backend gloo mpi nccl ucc xccl destroy_process_group
# groups
group group.WORLD GroupMember GroupMember.NON_GROUP_MEMBER ProcessGroup ProcessGroupGloo ProcessGroupMPI ProcessGroupNCCL ProcessGroupUCC ProcessGroupXCCL
ProcessGroup.abort new_group new_subgroups new_subgroups_by_enumeration split_group get_global_rank get_group_rank get_process_group_ranks use_local_synchronization shrink_group
init_device_mesh DeviceMesh DeviceMesh.get_group DeviceMesh.get_all_groups DeviceMesh.get_rank DeviceMesh.get_local_rank DeviceMesh.get_coordinate
DeviceMesh.size DeviceMesh.ndim DeviceMesh.shape DeviceMesh.from_group
# collectives and messages
all_reduce reduce broadcast all_gather all_gather_into_tensor gather scatter reduce_scatter reduce_scatter_tensor all_to_all all_to_all_single barrier
monitored_barrier all_reduce_coalesced all_gather_coalesced _coalescing_manager async_op broadcast_object_list all_gather_object gather_object
scatter_object_list send recv isend irecv P2POp batch_isend_irecv send_object_list recv_object_list torch.distributed.nn AllreduceOptions
AllreduceCoalescedOptions AllToAllOptions BarrierOptions BroadcastOptions GatherOptions ReduceOptions ReduceScatterOptions ScatterOptions
# operations and work
ReduceOp ReduceOp.SUM ReduceOp.AVG ReduceOp.PRODUCT ReduceOp.MIN ReduceOp.MAX ReduceOp.BAND ReduceOp.BOR ReduceOp.BXOR ReduceOp.PREMUL_SUM reduce_op
supports_complex Work.wait Work.is_completed Work.is_success Work.exception Work.get_future Work.get_future_result Work.result Work.synchronize
Work.block_current_stream Work.source_rank Work.boxed Work.unbox
# stores, errors, debugging
Store TCPStore FileStore HashStore PrefixStore Store.set Store.get Store.add Store.append Store.check Store.clone Store.compare_set Store.delete_key
Store.has_extended_api Store.list_keys Store.multi_get Store.multi_set Store.num_keys Store.queue_len Store.queue_pop Store.queue_push
Store.set_timeout Store.timeout Store.wait DistError DistBackendError DistNetworkError DistStoreError DistQueueEmptyError TORCH_DISTRIBUTED_DEBUG
DebugLevel get_debug_level set_debug_level set_debug_level_from_env dist.breakpoint torch.profiler torch.multiprocessing.spawn
# DistributedDataParallel
DistributedDataParallel module device_ids output_device dim broadcast_buffers init_sync process_group bucket_cap_mb find_unused_parameters
check_reduction gradient_as_bucket_view static_graph delay_all_reduce_named_params param_to_hook_all_reduce mixed_precision device_mesh
skip_all_reduce_unused_params no_sync DistributedDataParallel.join join_hook register_comm_hook will_sync_module_buffers Join Joinable JoinHook
divide_by_initial_world_size throw_on_early_termination GradBucket allreduce_hook fp16_compress_hook fp16_compress_wrapper bf16_compress_hook
bf16_compress_wrapper powerSGD_hook batched_powerSGD_hook PowerSGDState quantization_pertensor_hook quantization_perchannel_hook noop_hook
post_localSGD_hook PostLocalSGDState PostLocalSGDOptimizer PeriodicModelAverager HierarchicalModelAverager hook_then_optimizer hook_with_zero_step
hook_with_zero_step_interleaved
# beside it
DistributedSampler num_replicas shuffle seed drop_last set_epoch ElasticDistributedSampler DataLoader ZeroRedundancyOptimizer optimizer_class
parameters_as_bucket_view overlap_with_ddp consolidate_state_dict add_param_group SyncBatchNorm convert_sync_batchnorm clip_grad_norm_ get_total_norm
GradScaler dist.checkpoint.save dist.checkpoint.load FullyShardedDataParallel fully_shard DTensor torch.distributed.pipelining torch.distributed.rpc
# torchrun
--nproc-per-node --nnodes --node-rank --master-addr --master-port --local-addr --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone
--max-restarts --monitor-interval --start-method --module --no-python --run-path --role --virtual-local-rank --event-log-handler --log-dir --redirects
--tee --local-ranks-filter --logs-specs --numa-binding --signals-to-handle torch.distributed.elastic record
""")

# NCCL 2.28: all of nccl.h.
NCCL = words("""
# functions
ncclMemAlloc ncclMemFree ncclGetVersion ncclGetUniqueId ncclCommInitRankConfig ncclCommInitRank ncclCommInitAll ncclCommFinalize ncclCommDestroy
ncclCommAbort ncclCommRevoke ncclCommSplit ncclCommShrink ncclCommInitRankScalable ncclGetErrorString ncclGetLastError ncclResetDebugInit
ncclCommGetAsyncError ncclCommCount ncclCommCuDevice ncclCommUserRank ncclCommRegister ncclCommDeregister ncclCommWindowRegister
ncclCommWindowDeregister ncclRedOpCreatePreMulSum ncclRedOpDestroy ncclReduce ncclBcast ncclBroadcast ncclAllReduce ncclReduceScatter ncclAllGather
ncclAlltoAll ncclGather ncclScatter ncclSend ncclRecv ncclGroupStart ncclGroupEnd ncclGroupSimulateEnd
# types
ncclComm_t ncclWindow_t ncclUniqueId ncclResult_t ncclConfig_t ncclSimInfo_t ncclRedOp_t ncclDataType_t ncclScalarResidence_t
# macros
NCCL_MAJOR NCCL_MINOR NCCL_PATCH NCCL_SUFFIX NCCL_VERSION_CODE NCCL_VERSION NCCL_COMM_NULL NCCL_UNIQUE_ID_BYTES NCCL_CONFIG_UNDEF_INT
NCCL_CONFIG_UNDEF_PTR NCCL_SPLIT_NOCOLOR NCCL_UNDEF_FLOAT NCCL_WIN_DEFAULT NCCL_WIN_COLL_SYMMETRIC NCCL_WIN_REQUIRED_ALIGNMENT NCCL_CTA_POLICY_DEFAULT
NCCL_CTA_POLICY_EFFICIENCY NCCL_CTA_POLICY_ZERO NCCL_SHRINK_DEFAULT NCCL_SHRINK_ABORT NCCL_REVOKE_DEFAULT NCCL_CONFIG_INITIALIZER
NCCL_SIM_INFO_INITIALIZER
# enumerators
ncclSuccess ncclUnhandledCudaError ncclSystemError ncclInternalError ncclInvalidArgument ncclInvalidUsage ncclRemoteError ncclInProgress
ncclNumResults ncclSum ncclProd ncclMax ncclMin ncclAvg ncclNumOps ncclMaxRedOp ncclInt8 ncclChar ncclUint8 ncclInt32 ncclInt ncclUint32 ncclInt64
ncclUint64 ncclFloat16 ncclHalf ncclFloat32 ncclFloat ncclFloat64 ncclDouble ncclBfloat16 ncclFloat8e4m3 ncclFloat8e5m2 ncclNumTypes ncclScalarDevice
ncclScalarHostImmediate
# members of ncclConfig_t
blocking cgaClusterSize minCTAs maxCTAs netName splitShare trafficClass commName collnetEnable CTAPolicy shrinkShare nvlsCTAs nChannelsPerNetPeer
nvlinkCentricSched
""")

NOT_FOR_USERS = {"NCCL_H_", "ncclNumOps_dummy", "ncclRedOp_dummy_t", "size", "magic", "version"}


def names_of_nccl(header):
    """Returns the names that the text of nccl.h defines for users."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    names = re.findall(r"\b(nccl[A-Z]\w*)\s*\(", text)
    for body in re.findall(r"typedef enum \{(.*?)\}", text, re.S):
        names += re.findall(r"(nccl\w+)\s*=", body)
    names += re.findall(r"(\w+);", re.search(r"struct ncclConfig_v\d+ \{(.*?)\}", text, re.S)[1])
    names += re.findall(r"(?:\}|^typedef struct \w+\*)\s*(nccl\w+);", text, re.M)
    names += re.findall(r"^#define (NCCL_\w+)", text, re.M)
    return set(names) - NOT_FOR_USERS
