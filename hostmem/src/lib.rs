//! Shared memory, doorbells, descriptors and other processes' memory, with every barrier named
