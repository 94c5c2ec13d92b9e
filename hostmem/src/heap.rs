//! The allocator's memory.

/// Gives memory that was freed back to the kernel, wherever in the heap its pages lie.
///
/// By itself the allocator gives back the heap's end only, and one table that lives on may stand there.
/// While this looks at the part of the heap that a thread allocates from, that thread waits where it
/// allocates: the time is that of as many pages as are free. Allocators other than glibc's are left
/// alone.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes a number only, and is safe in threads.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Resident memory of this process in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no heap of glibc's")]
    fn what_lies_below_memory_in_use_is_given_back() {
        let mut all: Vec<Box<[u8; 1000]>> = (0..100_000).map(|_| Box::new([1; 1000])).collect();
        let before = resident();
        // The last one stays, at the end of the heap.
        let last = all.pop();
        drop(all);
        give_back();
        let after = resident();
        assert!(after + 50_000 < before, "{before} KiB, then {after} KiB");
        drop(last);
    }
}
