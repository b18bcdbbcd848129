# hvd with its tools, and the Fashion-MNIST trainer: docker build -t hvd . && docker run --shm-size=1g hvd
# docs/containers.md has the rest. BASE is a Debian or Ubuntu; one with CUDA and NCCL gives hvd its devices, too:
# docker build --build-arg BASE=nvidia/cuda:12.6.3-devel-ubuntu24.04 -t hvd-cuda .
ARG BASE=debian:12
FROM ${BASE}

# The number of compilers at once. Each wants 2 GiB of memory.
ARG JOBS=
COPY . /opt/hvd
RUN HVD_JOBS="${JOBS}" /opt/hvd/tools/container.sh

# The superuser may start ranks, they may outnumber cores, and Open MPI does not read other processes' memory, which Docker forbids.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_mpi_yield_when_idle=1 \
    OMPI_MCA_btl_vader_single_copy_mechanism=none
CMD ["mpiexec", "-n", "2", "fashion_mnist", "--epochs", "1"]
