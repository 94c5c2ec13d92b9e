//! The key table: the memory that a key names, its owner, and the rights to it.
//!
//! A memory window is a key of its own, for remote access only. While it is bound it opens a part of a
//! region, which it is looked up through each time, and which stays as it is as long as windows are bound to
//! it. One of type 2 belongs to the QP that bound it, and is unbound before it is bound again.

use fpga_regs::engine::admin::{AdminStatus, CreateKey, KeyKind, ModifyKey};
use fpga_regs::engine::key::{self, Access};
use fpga_regs::engine::message::RemoteRange;

use crate::memory::Rings;
use crate::numbers::{ByNumber, Numbers, Random, free_all, take};

/// Memory behind a key.
#[derive(Clone, Copy, Debug)]
struct Region {
    va: u64,
    length: u64,
    iova: u64,
    pdn: u32,
    access: Access,
    variant: u8,
    /// The part of the device memory that it lies in.
    dm: Option<u32>,
    /// Windows that are bound to it.
    windows: u32,
    /// Whether every address of it is its `iova`: it is a null region.
    is_null: bool,
}

/// A memory window.
#[derive(Clone, Copy, Debug)]
struct Window {
    pdn: u32,
    is_type_2: bool,
    variant: u8,
    bound: Option<Bound>,
}

/// The binding of a memory window.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The QP that bound it.
    qpn: u32,
    /// The number of the region's key.
    region: u32,
    /// Where in the region it begins.
    offset: u64,
    /// The address of its first byte.
    va: u64,
    length: u64,
    access: Access,
}

/// A binding that a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// The window's key from now on.
    pub(crate) rkey: u32,
    /// The region's key.
    pub(crate) lkey: u32,
    pub(crate) va: u64,
    /// 0 unbinds it.
    pub(crate) length: u64,
    pub(crate) access: Access,
}

/// A QP through which keys are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) qpn: u32,
    pub(crate) pdn: u32,
}

/// The accesses that a window may grant, and the counting of its addresses.
const WINDOW_ACCESS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED);

impl Region {
    /// As work requests will name it, if there can be such a region.
    fn checked(self, memory: &impl Rings) -> Result<Self, AdminStatus> {
        let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let needs_local_write = self.access.intersects(remote_writes);
        if needs_local_write && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(AdminStatus::Invalid);
        }
        let va = if self.access.contains(Access::ZERO_BASED) { 0 } else { self.va };
        if va.checked_add(self.length).is_none() {
            return Err(AdminStatus::Invalid);
        }
        let is_host = self.dm.is_none();
        if is_host && self.length > 0 && !memory.reachable(self.iova, self.length) {
            return Err(AdminStatus::BadAddress);
        }
        Ok(Self { va, ..self })
    }
}

/// Bytes of a page of the hosts'.
pub(crate) const PAGE: u64 = 4096;

/// Why a key does not grant an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No such key, or another variant of it, or another protection domain.
    Key,
    /// A part of the range lies outside the region.
    Bounds,
    /// The right is missing.
    Right,
}

/// The keys of one engine.
#[derive(Debug)]
pub(crate) struct Keys {
    regions: ByNumber<Region>,
    windows: ByNumber<Window>,
    numbers: Numbers,
}

impl Keys {
    /// Bytes of a key in the table.
    pub(crate) const BYTES_OF_EACH: usize = size_of::<(u32, Region)>();
    /// Bytes of a window in the table.
    pub(crate) const BYTES_OF_WINDOW: usize = size_of::<(u32, Window)>();

    /// A table of at most `limit` keys, whose numbers have `bits` random bits.
    pub(crate) fn new(bits: u32, limit: u32) -> Self {
        let (regions, windows) = Default::default();
        Self { regions, windows, numbers: Numbers::new(bits, 0, limit) }
    }

    /// Makes a key. One in device memory has the card's address there in place of an IOVA.
    pub(crate) fn create(
        &mut self,
        command: &CreateKey,
        memory: &impl Rings,
        random: &mut impl Random,
    ) -> Result<u32, AdminStatus> {
        let dm = match command.kind {
            KeyKind::Region => None,
            KeyKind::DeviceMemory => Some(command.dm),
            KeyKind::Window1 | KeyKind::Window2 => return self.create_window(command, random),
            KeyKind::Null => return self.create_null(command, memory, random),
            _ => return Err(AdminStatus::Unsupported),
        };
        let CreateKey { va, length, iova, pdn, access, .. } = *command;
        let (variant, windows, is_null) = (0, 0, false);
        let region = Region { va, length, iova, pdn, access, variant, dm, windows, is_null };
        self.insert(region.checked(memory)?, random)
    }

    fn insert(&mut self, region: Region, random: &mut impl Random) -> Result<u32, AdminStatus> {
        let number = self.numbers.draw(random).ok_or(AdminStatus::NoResources)?;
        let variant = random.next_u32() as u8;
        self.regions.insert(number, Region { variant, ..region });
        Ok(key::key(number, variant))
    }

    fn create_null(
        &mut self,
        &CreateKey { pdn, access, .. }: &CreateKey,
        memory: &impl Rings,
        random: &mut impl Random,
    ) -> Result<u32, AdminStatus> {
        let iova = memory.null().ok_or(AdminStatus::Unsupported)?;
        // Other rights would be for a peer, or a window.
        if !Access::LOCAL_WRITE.contains(access) {
            return Err(AdminStatus::Invalid);
        }
        let (variant, dm, windows) = (0, None, 0);
        let (va, length, is_null) = (0, u64::MAX, true);
        let region = Region { va, length, iova, pdn, access, variant, dm, windows, is_null };
        self.insert(region, random)
    }

    fn create_window(
        &mut self,
        command: &CreateKey,
        random: &mut impl Random,
    ) -> Result<u32, AdminStatus> {
        let number = self.numbers.draw(random).ok_or(AdminStatus::NoResources)?;
        let (pdn, is_type_2) = (command.pdn, command.kind == KeyKind::Window2);
        let variant = random.next_u32() as u8;
        self.windows.insert(number, Window { pdn, is_type_2, variant, bound: None });
        Ok(key::key(number, variant))
    }

    /// Gives a key another region; a refused key keeps its own.
    pub(crate) fn modify(
        &mut self,
        command: &ModifyKey,
        memory: &impl Rings,
    ) -> Result<(), AdminStatus> {
        let ModifyKey { va, length, iova, pdn, access, key } = *command;
        let variant = key::variant(key);
        let place = self.regions.get_mut(&key::number(key));
        let place = place.filter(|region| region.variant == variant);
        let place = place.ok_or(AdminStatus::NotFound)?;
        if place.dm.is_some() || place.is_null {
            return Err(AdminStatus::Invalid);
        }
        if place.windows != 0 {
            return Err(AdminStatus::Busy);
        }
        let (dm, windows, is_null) = (None, 0, false);
        let region = Region { va, length, iova, pdn, access, variant, dm, windows, is_null };
        *place = region.checked(memory)?;
        Ok(())
    }

    /// Ends a key; answers the part of the device memory that it named. A window may have any variant by now.
    pub(crate) fn destroy(&mut self, key: u32) -> Result<Option<u32>, AdminStatus> {
        let number = key::number(key);
        if self.windows.contains_key(&number) {
            self.unbind(number);
            take(&mut self.windows, number);
            self.numbers.free(number);
            return Ok(None);
        }
        match self.regions.get(&number) {
            Some(region) if region.windows != 0 && region.variant == key::variant(key) => {
                Err(AdminStatus::Busy)
            }
            Some(region) if region.variant == key::variant(key) => {
                let dm = region.dm;
                take(&mut self.regions, number);
                self.numbers.free(number);
                Ok(dm)
            }
            _ => Err(AdminStatus::NotFound),
        }
    }

    /// Forgets every key; their numbers rest.
    pub(crate) fn clear(&mut self) {
        free_all(&mut self.regions, &mut self.numbers);
        free_all(&mut self.windows, &mut self.numbers);
    }

    /// Binds a window through a QP, or unbinds it; one that is refused stays as it was.
    pub(crate) fn bind(&mut self, by: Peer, binding: &Binding) -> Result<(), Denied> {
        let Binding { rkey, lkey, va, length, access } = *binding;
        let number = key::number(rkey);
        let window = self.windows.get(&number).filter(|window| window.pdn == by.pdn);
        let Window { is_type_2, bound, .. } = *window.ok_or(Denied::Key)?;
        let is_zero_based = access.contains(Access::ZERO_BASED);
        if !WINDOW_ACCESS.contains(access) || (is_zero_based && !is_type_2) {
            return Err(Denied::Right);
        }
        if is_type_2 && bound.is_some() {
            return Err(Denied::Key);
        }
        let bound = match length {
            0 => None,
            _ => {
                let needed = match access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
                    true => Access::WINDOW_BIND | Access::LOCAL_WRITE,
                    false => Access::WINDOW_BIND,
                };
                let offset = self.offset_in(lkey, by.pdn, va, length, needed)?;
                let (qpn, region) = (by.qpn, key::number(lkey));
                let va = if is_zero_based { 0 } else { va };
                Some(Bound { qpn, region, offset, va, length, access })
            }
        };
        self.unbind(number);
        if let Some(region) = bound.and_then(|bound| self.regions.get_mut(&bound.region)) {
            region.windows = region.windows.saturating_add(1);
        }
        if let Some(window) = self.windows.get_mut(&number) {
            (window.variant, window.bound) = (key::variant(rkey), bound);
        }
        Ok(())
    }

    /// Whether a window may be taken back through a QP: it is of type 2, and was bound by it.
    pub(crate) fn can_invalidate(&self, by: Peer, rkey: u32) -> bool {
        self.windows.get(&key::number(rkey)).is_some_and(|window| {
            let is_its_own = window.bound.is_some_and(|bound| bound.qpn == by.qpn);
            let is_named = window.variant == key::variant(rkey) && window.pdn == by.pdn;
            window.is_type_2 && is_named && is_its_own
        })
    }

    /// Unbinds a window that may be taken back.
    pub(crate) fn invalidate(&mut self, by: Peer, rkey: u32) -> Result<(), Denied> {
        if !self.can_invalidate(by, rkey) {
            return Err(Denied::Key);
        }
        self.unbind(key::number(rkey));
        Ok(())
    }

    /// Unbinds the window of that number, if it is bound.
    fn unbind(&mut self, number: u32) {
        let bound = self.windows.get_mut(&number).and_then(|window| window.bound.take());
        if let Some(region) = bound.and_then(|bound| self.regions.get_mut(&bound.region)) {
            region.windows = region.windows.saturating_sub(1);
        }
    }

    /// Where `length` bytes from `va` lie for the card, if `key` is a region's and grants `right` on them in
    /// `pdn`.
    pub(crate) fn translate(
        &self,
        key: u32,
        pdn: u32,
        va: u64,
        length: u64,
        right: Access,
    ) -> Result<u64, Denied> {
        let region = self.regions.get(&key::number(key)).ok_or(Denied::Key)?;
        let offset = region.open(key, pdn, va, length, right)?;
        region.iova.checked_add(offset).ok_or(Denied::Bounds)
    }

    /// Whether a key is a region's.
    pub(crate) fn is_region(&self, key: u32) -> bool {
        let region = self.regions.get(&key::number(key));
        region.is_some_and(|region| region.variant == key::variant(key))
    }

    /// The page on the bus of a page of memory, by its first byte, of which some region of `pdn` that grants `right` has
    /// a part, under any key.
    pub(crate) fn page_of(&self, pdn: u32, va: u64, right: Access) -> Option<u64> {
        let page_of = |(number, region): (&u32, &Region)| {
            let (last, end) = (va | PAGE.wrapping_sub(1), region.va.saturating_add(region.length));
            let granted = region.pdn == pdn && region.dm.is_none() && region.access.contains(right);
            let iova = region.iova.wrapping_sub(region.va).wrapping_add(va);
            let lies = granted && region.va <= last && va < end && iova % PAGE == 0;
            lies.then_some((*number, iova))
        };
        // Which one it is does not depend on the table's order.
        self.regions.iter().filter_map(page_of).min().map(|(_, iova)| iova)
    }

    /// The same of a key that a peer names, which may be a window's.
    pub(crate) fn translate_remote(
        &self,
        peer: Peer,
        memory: RemoteRange,
        right: Access,
    ) -> Result<u64, Denied> {
        let RemoteRange { rkey, va, length } = memory;
        match self.translate(rkey, peer.pdn, va, length, right) {
            Err(Denied::Key) => self.translate_window(peer, memory, right),
            opened => opened,
        }
    }

    #[cold]
    fn translate_window(
        &self,
        peer: Peer,
        memory: RemoteRange,
        right: Access,
    ) -> Result<u64, Denied> {
        let RemoteRange { rkey, va, length } = memory;
        let window = self.windows.get(&key::number(rkey)).ok_or(Denied::Key)?;
        let bound = window.bound.ok_or(Denied::Key)?;
        let is_its_own = !window.is_type_2 || bound.qpn == peer.qpn;
        if window.variant != key::variant(rkey) || window.pdn != peer.pdn || !is_its_own {
            return Err(Denied::Key);
        }
        if !bound.access.contains(right) {
            return Err(Denied::Right);
        }
        let offset = within(bound.va, bound.length, va, length)?;
        let region = self.regions.get(&bound.region).ok_or(Denied::Key)?;
        let offset = offset.checked_add(bound.offset).ok_or(Denied::Bounds)?;
        region.iova.checked_add(offset).ok_or(Denied::Bounds)
    }

    /// Where a range begins in the region of a key.
    fn offset_in(
        &self,
        key: u32,
        pdn: u32,
        va: u64,
        length: u64,
        right: Access,
    ) -> Result<u64, Denied> {
        let region = self.regions.get(&key::number(key)).ok_or(Denied::Key)?;
        region.open(key, pdn, va, length, right)
    }
}

impl Region {
    /// Where a range begins in it, if `key` is its own and grants `right` on the range in `pdn`.
    #[inline]
    fn open(&self, key: u32, pdn: u32, va: u64, length: u64, right: Access) -> Result<u64, Denied> {
        if self.variant != key::variant(key) || self.pdn != pdn {
            return Err(Denied::Key);
        }
        if !self.access.contains(right) {
            return Err(Denied::Right);
        }
        let offset = within(self.va, self.length, va, length)?;
        Ok(if self.is_null { 0 } else { offset })
    }
}

/// Where the `length` bytes from `va` begin in the `size` bytes from `start`.
#[inline]
fn within(start: u64, size: u64, va: u64, length: u64) -> Result<u64, Denied> {
    let offset = va.checked_sub(start).ok_or(Denied::Bounds)?;
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(offset),
        _ => Err(Denied::Bounds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::Reachable;
    use crate::numbers::tests::Seeded;

    const REGION: CreateKey = CreateKey {
        va: 0x1000,
        length: 0x100,
        iova: 0x20_1000,
        pdn: 5,
        access: Access::LOCAL_WRITE.union(Access::REMOTE_WRITE),
        kind: KeyKind::Region,
        dm: 0,
    };

    fn keys() -> (Keys, u32) {
        let mut keys = Keys::new(24, 8);
        let memory = Reachable(true);
        let key = keys.create(&REGION, &memory, &mut Seeded(3)).unwrap();
        (keys, key)
    }

    #[test]
    fn a_key_opens_its_region_to_the_last_byte_and_no_further() {
        let (keys, key) = keys();
        let open = |va, length| keys.translate(key, 5, va, length, Access::REMOTE_WRITE);
        assert_eq!(open(0x1000, 0x100), Ok(0x20_1000));
        assert_eq!(open(0x10ff, 1), Ok(0x20_10ff));
        assert_eq!(open(0x10ff, 2), Err(Denied::Bounds));
        assert_eq!(open(0x0fff, 1), Err(Denied::Bounds));
        assert_eq!(open(0x1001, u64::MAX), Err(Denied::Bounds));
        assert_eq!(open(u64::MAX, 2), Err(Denied::Bounds));
    }

    #[test]
    fn a_key_opens_only_for_its_domain_variant_and_rights() {
        let (mut keys, key) = keys();
        let open = |keys: &Keys, key, pdn, right| keys.translate(key, pdn, 0x1000, 1, right);
        assert_eq!(open(&keys, key, 6, Access::REMOTE_WRITE), Err(Denied::Key));
        assert_eq!(open(&keys, key ^ 1, 5, Access::REMOTE_WRITE), Err(Denied::Key));
        assert_eq!(open(&keys, key, 5, Access::REMOTE_READ), Err(Denied::Right));
        assert_eq!(keys.destroy(key ^ 1), Err(AdminStatus::NotFound));
        assert_eq!(keys.destroy(key), Ok(None));
        assert_eq!(open(&keys, key, 5, Access::REMOTE_WRITE), Err(Denied::Key));
    }

    #[test]
    fn every_address_of_a_null_region_is_one_and_no_peer_has_a_right_to_it() {
        let mut keys = Keys::new(24, 8);
        let access = Access::LOCAL_WRITE;
        let command =
            CreateKey { va: 9, length: 1, iova: 7, access, kind: KeyKind::Null, ..REGION };
        let mut make = |access, there| {
            keys.create(&CreateKey { access, ..command }, &Reachable(there), &mut Seeded(3))
        };
        assert_eq!(make(access, false), Err(AdminStatus::Unsupported));
        for more in [Access::REMOTE_READ, Access::WINDOW_BIND, Access::ZERO_BASED] {
            assert_eq!(make(access | more, true), Err(AdminStatus::Invalid));
        }
        let (key, only_read) = (make(access, true).unwrap(), make(Access::empty(), true).unwrap());
        let open = |va, length, right| keys.translate(key, 5, va, length, right);
        for (va, length) in [(0, 1), (9, u32::MAX.into()), (u64::MAX - 4, 4)] {
            assert_eq!(open(va, length, access), Ok(3 << 62));
            assert_eq!(keys.translate(only_read, 5, va, length, Access::empty()), Ok(3 << 62));
        }
        assert_eq!(open(u64::MAX, 2, access), Err(Denied::Bounds));
        assert_eq!(keys.translate(key, 6, 0, 1, access), Err(Denied::Key));
        assert_eq!(keys.translate(only_read, 5, 0, 1, access), Err(Denied::Right));
        let peer = Peer { qpn: 1, pdn: 5 };
        let memory = RemoteRange { rkey: key, va: 0, length: 1 };
        for right in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(keys.translate_remote(peer, memory, right), Err(Denied::Right));
            assert_eq!(keys.page_of(5, 0, right), None);
        }
        let modify = ModifyKey { length: 8, pdn: 5, key, ..ModifyKey::default() };
        assert_eq!(keys.modify(&modify, &Reachable(true)), Err(AdminStatus::Invalid));
        assert_eq!(keys.destroy(key), Ok(None));
    }

    #[test]
    fn addresses_of_a_zero_based_region_are_offsets() {
        let mut keys = Keys::new(24, 8);
        let access = REGION.access | Access::ZERO_BASED;
        let command = CreateKey { va: u64::MAX, access, ..REGION };
        let key = keys.create(&command, &Reachable(true), &mut Seeded(3)).unwrap();
        let open = |va, length| keys.translate(key, 5, va, length, Access::REMOTE_WRITE);
        assert_eq!(open(0, 0x100), Ok(0x20_1000));
        assert_eq!(open(0xff, 1), Ok(0x20_10ff));
        assert_eq!(open(1, 0x100), Err(Denied::Bounds));
        assert_eq!(open(u64::MAX, 1), Err(Denied::Bounds));
    }

    #[test]
    fn a_cleared_table_opens_nothing_and_its_numbers_rest() {
        let mut keys = Keys::new(14, 1000);
        let mut random = Seeded(3);
        let mut make =
            |keys: &mut Keys| keys.create(&REGION, &Reachable(true), &mut random).unwrap();
        let before: Vec<u32> = (0..1000).map(|_| make(&mut keys)).collect();
        keys.clear();
        for _ in 0..1000 {
            let key = make(&mut keys);
            assert!(before.iter().all(|old| key::number(*old) != key::number(key)));
        }
        let open = |key| keys.translate(key, 5, 0x1000, 1, Access::LOCAL_WRITE);
        assert!(before.iter().all(|key| open(*key) == Err(Denied::Key)));
    }

    #[test]
    fn remote_writes_need_local_writes_and_memory_must_be_mapped() {
        let mut keys = Keys::new(24, 8);
        let command = CreateKey { access: Access::REMOTE_WRITE, ..REGION };
        let memory = Reachable(true);
        let refused = keys.create(&command, &memory, &mut Seeded(3));
        assert_eq!(refused, Err(AdminStatus::Invalid));
        let refused = keys.create(&REGION, &Reachable(false), &mut Seeded(3));
        assert_eq!(refused, Err(AdminStatus::BadAddress));
    }
}
