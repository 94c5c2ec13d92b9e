//! C types of libibverbs and of its private provider interface, one module per rdma-core release
