# mpi.bash - for tests that start ranks by mpirun: as root, with more ranks than cores, and in a container that does not
# let a process read the memory of another. MPICH ignores all of it.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
