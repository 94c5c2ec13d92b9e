//! The key table: which memory a key names, for whom, and for what.

use fpga_regs::engine::admin::{AdminStatus, CreateKey, KeyKind, ModifyKey};
use fpga_regs::engine::key::{self, Access};

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
}

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

/// Why a key does not open what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No such key, or another variant of it, or another protection domain.
    Key,
    /// Not all of the range lies in the region.
    Bounds,
    /// The right is missing.
    Right,
}

/// The keys of one engine.
#[derive(Debug)]
pub(crate) struct Keys {
    regions: ByNumber<Region>,
    numbers: Numbers,
}

impl Keys {
    /// Bytes of a key in the table.
    pub(crate) const BYTES_OF_EACH: usize = size_of::<(u32, Region)>();

    /// A table of at most `limit` keys, whose numbers have `bits` random bits.
    pub(crate) fn new(bits: u32, limit: u32) -> Self {
        Self { regions: ByNumber::default(), numbers: Numbers::new(bits, 0, limit) }
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
            _ => return Err(AdminStatus::Unsupported),
        };
        let CreateKey { va, length, iova, pdn, access, .. } = *command;
        let region = Region { va, length, iova, pdn, access, variant: 0, dm }.checked(memory)?;
        let number = self.numbers.draw(random).ok_or(AdminStatus::NoResources)?;
        let variant = random.next_u32() as u8;
        self.regions.insert(number, Region { variant, ..region });
        Ok(key::key(number, variant))
    }

    /// Gives a key another region; one that is refused keeps what it has.
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
        if place.dm.is_some() {
            return Err(AdminStatus::Invalid);
        }
        *place = Region { va, length, iova, pdn, access, variant, dm: None }.checked(memory)?;
        Ok(())
    }

    /// Ends a key; answers the part of the device memory that it named.
    pub(crate) fn destroy(&mut self, key: u32) -> Result<Option<u32>, AdminStatus> {
        let number = key::number(key);
        match self.regions.get(&number) {
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
    }

    /// Where `length` bytes from `va` lie for the card, if `key` grants `right` on them in `pdn`.
    pub(crate) fn translate(
        &self,
        key: u32,
        pdn: u32,
        va: u64,
        length: u64,
        right: Access,
    ) -> Result<u64, Denied> {
        let region = self.regions.get(&key::number(key)).ok_or(Denied::Key)?;
        if region.variant != key::variant(key) || region.pdn != pdn {
            return Err(Denied::Key);
        }
        if !region.access.contains(right) {
            return Err(Denied::Right);
        }
        let offset = va.checked_sub(region.va).ok_or(Denied::Bounds)?;
        match offset.checked_add(length) {
            Some(end) if end <= region.length => {
                region.iova.checked_add(offset).ok_or(Denied::Bounds)
            }
            _ => Err(Denied::Bounds),
        }
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
