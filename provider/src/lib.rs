//! The libibverbs plug-in
