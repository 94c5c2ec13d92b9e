//! The client's memory on the card's bus: `DMA_MAP` and `DMA_UNMAP`.
//!
//! A map that comes with a memory file is reached directly. Each message brings a fresh descriptor
//! of mostly the same file, so files are known by device and inode, mapped whole once, and the
//! descriptor is closed. A file is mapped only if it is sealed against shrinking (memory of QEMU's
//! `memory-backend-memfd` is) and not of huge pages: anything else could be taken away under the
//! mapping, and would end this process. Such a map, like one without a file, is served by asking
//! the client, with `DMA_READ` and `DMA_WRITE`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use hostmem::{Access, DmaMemory, FileId, SharedMapping, foreign};
use nix::errno::Errno;

use crate::Error;
use crate::bus::{AskedMemory, Backing, Bus, Rights};

/// Most maps at a time.
pub(crate) const MAX_MAPS: usize = 65_535;
/// The page sizes of maps, or'ed together: all sizes are multiples of this one.
pub(crate) const PAGE_SIZES: u64 = 4096;
/// Most files mapped at a time: a process may have some 65,000 mappings.
const MAX_FILES: usize = 1024;
/// Most bytes of files mapped at a time: a process has room for 2^47.
const MAX_FILE_BYTES: u64 = 1 << 45;

/// `DMA_MAP`: the card may read, the card may write.
const MAP_READ: u32 = 1 << 0;
const MAP_WRITE: u32 = 1 << 1;
/// `DMA_UNMAP`: report dirty pages, which are not tracked.
const UNMAP_DIRTY: u32 = 1 << 0;
/// `DMA_UNMAP`: everything there is.
const UNMAP_ALL: u32 = 1 << 1;

/// Bytes of the client's addresses.
pub(crate) struct Span {
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// The maps of one client.
#[derive(Debug)]
pub(crate) struct Maps {
    bus: Rc<Bus>,
    /// How to ask the client.
    client: Rc<dyn AskedMemory>,
    /// Files that are mapped: for writing, or else for reading.
    files: BTreeMap<(FileId, bool), Weak<SharedMapping>>,
}

impl Maps {
    pub(crate) fn new(bus: Rc<Bus>, client: Rc<dyn AskedMemory>) -> Self {
        Self { bus, client, files: BTreeMap::new() }
    }

    /// Maps a range.
    ///
    /// # Errors
    /// EINVAL for a range that is none or leaves its file, EEXIST where something is mapped
    /// already, ENOSPC when there are too many maps or files, and those of `mmap`.
    pub(crate) fn map(
        &mut self,
        flags: u32,
        offset: u64,
        Span { address, size }: Span,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        let rights = Rights { read: flags & MAP_READ != 0, write: flags & MAP_WRITE != 0 };
        let aligned = [offset, address, size].iter().all(|value| value % PAGE_SIZES == 0);
        if flags & !(MAP_READ | MAP_WRITE) != 0 || flags == 0 || !aligned || fds.len() > 1 {
            return Err(Errno::EINVAL);
        }
        if self.bus.ranges() >= MAX_MAPS {
            return Err(Errno::ENOSPC);
        }
        let file = fds.into_iter().next().filter(|fd| foreign::can_be_mapped(fd.as_fd()));
        let backing = match file {
            Some(fd) => {
                let mapping = self.file(&fd, rights.write)?;
                let inside =
                    offset.checked_add(size).is_some_and(|end| end <= mapping.len() as u64);
                if !inside {
                    return Err(Errno::EINVAL);
                }
                Backing::Reached(DmaMemory::Shared { mapping, offset })
            }
            None => Backing::Asked(Rc::clone(&self.client)),
        };
        self.bus.map_any(address, size, rights, backing).map_err(|error| match error {
            Error::Overlap { .. } => Errno::EEXIST,
            _ => Errno::EINVAL,
        })
    }

    /// The mapping of a file, made now or before.
    fn file(&mut self, fd: &OwnedFd, write: bool) -> Result<Arc<SharedMapping>, Errno> {
        let (id, bytes) = foreign::identify(fd.as_fd()).map_err(errno)?;
        let known = self.files.get(&(id, write)).and_then(Weak::upgrade);
        // A file may have grown since.
        if let Some(mapping) = known.filter(|mapping| mapping.len() as u64 >= bytes) {
            return Ok(mapping);
        }
        self.files.retain(|_, mapping| mapping.strong_count() > 0);
        let mapped = self.files.values().filter_map(Weak::upgrade);
        let mapped = mapped.fold(bytes, |sum, mapping| sum.saturating_add(mapping.len() as u64));
        if self.files.len() >= MAX_FILES || mapped > MAX_FILE_BYTES {
            return Err(Errno::ENOSPC);
        }
        let access = if write { Access::ReadWrite } else { Access::ReadOnly };
        let mapping = Arc::new(foreign::map(fd.as_fd(), access).map_err(errno)?);
        self.files.insert((id, write), Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// Unmaps every map inside a range, or all there are; none inside it is no error.
    ///
    /// # Errors
    /// EINVAL where the range would cut a map in two, ENOTSUP where dirty pages are asked for.
    pub(crate) fn unmap(&mut self, flags: u32, span: Span) -> Result<(), Errno> {
        let Span { address, size } = span;
        match flags {
            UNMAP_ALL if (address, size) == (0, 0) => self.clear(),
            0 if size == 0 || address.checked_add(size.saturating_sub(1)).is_none() => {
                return Err(Errno::EINVAL);
            }
            0 if self.bus.cuts(address, size) => return Err(Errno::EINVAL),
            0 => {
                self.bus.unmap(address, size);
            }
            _ if flags & UNMAP_DIRTY != 0 => return Err(Errno::ENOTSUP),
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Maps, and files that are mapped.
    pub(crate) fn held(&self) -> [usize; 2] {
        let files = self.files.values().filter(|mapping| mapping.strong_count() > 0);
        [self.bus.ranges(), files.count()]
    }

    /// Unmaps everything.
    pub(crate) fn clear(&mut self) {
        self.bus.clear();
    }
}

fn errno(error: hostmem::Error) -> Errno {
    error.errno().unwrap_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use hostmem::memfd;

    use super::*;
    use crate::bus::BusMemory;

    #[derive(Debug, Default)]
    struct CountingMemory(Cell<u32>);

    impl AskedMemory for CountingMemory {
        fn read(&self, _: u64, _: &mut [u8]) -> bool {
            self.0.set(self.0.get() + 1);
            true
        }
        fn write(&self, _: u64, _: &[u8]) -> bool {
            true
        }
    }

    fn maps() -> Maps {
        let bus = Rc::new(Bus::default());
        Maps::new(bus, Rc::new(CountingMemory::default()))
    }

    fn span(address: u64, size: u64) -> Span {
        Span { address, size }
    }

    const BOTH: u32 = MAP_READ | MAP_WRITE;

    #[test]
    fn a_file_is_mapped_once_however_many_descriptors_of_it_arrive() {
        let mut maps = maps();
        let file = memfd::create("guest", 64 << 12).unwrap();
        for page in 0..64u64 {
            let fd = file.try_clone().unwrap();
            // In reverse: neighbours on the bus are none in the file.
            maps.map(BOTH, (63 - page) << 12, span(page << 12, 4096), vec![fd]).unwrap();
        }
        assert_eq!(maps.held(), [64, 1]);
        let found = |maps: &Maps| match maps.bus.find(0x3010, 16, Rights::BOTH) {
            Some(BusMemory::Shared(_, offset)) => Some(offset),
            _ => None,
        };
        assert_eq!(found(&maps), Some((60 << 12) + 0x10));
        maps.unmap(0, span(0, 64 << 12)).unwrap();
        assert_eq!((maps.held(), found(&maps)), ([0, 0], None));
    }

    #[test]
    fn memory_without_a_file_or_with_one_that_may_vanish_is_asked_for() {
        let mut maps = maps();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        maps.map(BOTH, 0, span(0x1000, 4096), vec![]).unwrap();
        maps.map(BOTH, 0, span(0x2000, 4096), vec![file.into()]).unwrap();
        for address in [0x1000, 0x2000] {
            let place = maps.bus.find(address, 1, Rights::READ);
            assert!(matches!(place, Some(BusMemory::Asked(_))));
        }
    }

    #[test]
    fn a_map_keeps_to_its_rights_its_file_and_its_place() {
        let mut maps = maps();
        let file = memfd::create("guest", 0x4000).unwrap();
        let fd = || vec![file.try_clone().unwrap()];
        maps.map(MAP_READ, 0x1000, span(0x8000, 0x3000), fd()).unwrap();
        assert!(maps.bus.find(0x8000, 8, Rights::WRITE).is_none());
        let refused = [
            maps.map(BOTH, 0x1000, span(0x10_0000, 0x4000), fd()),
            maps.map(BOTH, u64::MAX - 4095, span(0x10_0000, 0x2000), fd()),
            maps.map(BOTH, 1, span(0x10_0000, 0x1000), fd()),
            maps.map(BOTH, 0, span(0x10_0001, 0x1000), fd()),
            maps.map(BOTH, 0, span(0x10_0000, 0x1001), fd()),
            maps.map(BOTH, 0, span(0x10_0000, 0), fd()),
            maps.map(0, 0, span(0x10_0000, 0x1000), fd()),
            maps.map(1 << 2 | BOTH, 0, span(0x10_0000, 0x1000), fd()),
            maps.map(BOTH, 0, span(u64::MAX - 4095, 0x2000), vec![]),
            maps.map(BOTH, 0, span(0x10_0000, 0x1000), fd().into_iter().chain(fd()).collect()),
        ];
        assert_eq!(refused, [Err(Errno::EINVAL); 10]);
        assert_eq!(maps.map(BOTH, 0, span(0xa000, 0x1000), fd()), Err(Errno::EEXIST));
        let (reader, _writer) = memfd::create_read_only_for_others("words", 4096).unwrap();
        let reader = || vec![reader.try_clone().unwrap()];
        assert_eq!(maps.map(BOTH, 0, span(0x10_0000, 4096), reader()), Err(Errno::EPERM));
        maps.map(MAP_READ, 0, span(0x10_0000, 4096), reader()).unwrap();
    }

    #[test]
    fn a_range_unmaps_what_it_holds_and_may_be_empty() {
        let mut maps = maps();
        for page in 0..4 {
            maps.map(BOTH, 0, span(page << 12, 4096), vec![]).unwrap();
        }
        maps.map(BOTH, 0, span(0x10_0000, 0x2000), vec![]).unwrap();
        maps.unmap(0, span(0x80_0000, 0x20_0000)).unwrap();
        assert_eq!(maps.unmap(0, span(0, 0x10_1000)), Err(Errno::EINVAL));
        assert_eq!(maps.unmap(0, span(0x10_1000, 0x1000)), Err(Errno::EINVAL));
        assert_eq!(maps.bus.ranges(), 5);
        maps.unmap(0, span(0x1000, 0x2000)).unwrap();
        assert_eq!(maps.bus.ranges(), 3);
        let refused = [
            maps.unmap(0, span(0, 0)),
            maps.unmap(0, span(4096, u64::MAX)),
            maps.unmap(UNMAP_ALL, span(0, 4096)),
            maps.unmap(1 << 3, span(0, 4096)),
        ];
        assert_eq!(refused, [Err(Errno::EINVAL); 4]);
        assert_eq!(maps.unmap(UNMAP_DIRTY, span(0, 4096)), Err(Errno::ENOTSUP));
        maps.map(BOTH, 0, span(u64::MAX - 4095, 4096), vec![]).unwrap();
        maps.unmap(UNMAP_ALL, span(0, 0)).unwrap();
        assert_eq!(maps.bus.ranges(), 0);
    }

    #[test]
    fn there_is_an_end_to_maps_and_to_files() {
        let mut maps = maps();
        let huge = memfd::create("huge", 1 << 45).unwrap();
        maps.map(BOTH, 0, span(0, 4096), vec![huge]).unwrap();
        let more = memfd::create("more", 4096).unwrap();
        assert_eq!(maps.map(BOTH, 0, span(4096, 4096), vec![more]), Err(Errno::ENOSPC));
        for page in 1..MAX_MAPS as u64 {
            maps.map(BOTH, 0, span(page << 12, 4096), vec![]).unwrap();
        }
        assert_eq!(maps.map(BOTH, 0, span(1 << 40, 4096), vec![]), Err(Errno::ENOSPC));
    }
}
