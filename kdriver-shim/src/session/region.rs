//! Memory registration: reserve, commit, deregister.

use std::sync::Arc;

use card_driver::iova::IovaRange;
use card_driver::translations::Purpose;
use fpga_regs::engine::admin::{CreateKey, KeyKind, ModifyKey};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::window::Capabilities;
use hostmem::DmaMemory;
use shim_abi::Response;

use super::{Answer, Progress, Session, found};
use crate::cards::find;
use crate::error::Error;
use crate::objects::Mr;

const PAGE: u64 = 4096;

/// `IBV_ACCESS_ON_DEMAND`: memory that is not there until it is touched.
const ON_DEMAND: u32 = 1 << 6;
/// `IBV_ACCESS_HUGETLB` and the range that `ibv_reg_mr` calls optional: may be ignored.
const IGNORABLE: u32 = 1 << 7 | 0x3ff0_0000;

/// The region that a client asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRegion {
    pub pdn: u32,
    pub address: u64,
    pub length: u64,
    pub hca_va: u64,
    pub access: u32,
}

impl Session<'_> {
    pub(super) fn reserve_mr(&mut self, wanted: WantedRegion) -> Result<Answer, Error> {
        let pd = found(self.client.owned.pds.get(&wanted.pdn), wanted.pdn)?;
        let card = self.context(pd.context)?.card;
        let limits = self.limits(card)?;
        check_access(wanted.access)?;
        let pages = pages(&wanted)?;
        check_name(card, &limits.capabilities, &wanted)?;
        let WantedRegion { pdn, address, length, hca_va, access } = wanted;
        let (range, mapped, key, dm) = (None, false, None, None);
        let mr = Mr { card, pdn, address, length, hca_va, access, range, mapped, key, dm };
        self.make(&limits, mr, |session, mr| {
            let iova = session.map_region(mr, pages)?;
            let client = &mut *session.client;
            let number = client.numbers.next(u32::MAX, |n| client.owned.mrs.contains_key(&n));
            // The kernel names these addresses when an IOMMU refuses an access.
            log::debug!(
                "{}: memory region {number}: {length} bytes at {iova:#x} of balboa{card}",
                client.label()
            );
            Ok((number, Response::Reserved { mr: number, iova }.into()))
        })
    }

    /// Takes IOVAs for a region's pages and maps them, or says whose they are where the client maps them; a region of no
    /// bytes is not mapped. Returns where the card sees its first byte.
    fn map_region(&mut self, mr: &mut Mr, pages: u64) -> Result<u64, Error> {
        let process = Arc::clone(&self.client.handle);
        let place = self.client.place_mut(mr.card)?;
        let card = find(self.cards, mr.card)?;
        let address = mr.address & !(PAGE.wrapping_sub(1));
        let range = mr.range.insert(place.take_addresses(card, pages, address)?);
        if mr.length > 0 {
            let memory = DmaMemory::Process { process, address };
            card.device.map(place.window, range, Some(memory), Purpose::Payload)?;
            mr.mapped = true;
        }
        Ok(iova(range, mr.address))
    }

    pub(super) fn commit_mr(&mut self, mr: u32) -> Result<Answer, Error> {
        let region = found(self.client.owned.mrs.get(&mr), mr)?;
        if let Some(key) = region.key {
            return Err(Error::Invalid(format!(
                "memory region {mr} is committed, with key {key:#x}"
            )));
        }
        let command = CreateKey {
            va: region.hca_va,
            length: region.length,
            iova: region_iova(mr, region)?,
            pdn: region.pdn,
            access: Access::from_bits_truncate(region.access),
            kind: KeyKind::Region,
            dm: 0,
        };
        let card = region.card;
        self.limits(card)?;
        let key = self.window(card)?.engine.create_key(&command)?;
        if let Some(region) = self.client.owned.mrs.get_mut(&mr) {
            region.key = Some(key);
        }
        Ok(Response::Mr { lkey: key, rkey: key }.into())
    }

    /// Makes a region that has no memory: reads of it give 0, and writes to it are lost.
    pub(super) fn alloc_null_mr(&mut self, pdn: u32) -> Result<Answer, Error> {
        let pd = found(self.client.owned.pds.get(&pdn), pdn)?;
        let card = self.context(pd.context)?.card;
        let limits = self.limits(card)?;
        if !limits.capabilities.contains(Capabilities::NULL_MR) {
            let why = format!("balboa{card} has no null memory regions");
            return Err(Error::Unsupported(why));
        }
        let (address, length, hca_va, access) = (0, 0, 0, Access::LOCAL_WRITE);
        let (range, mapped, key, dm) = (None, false, None, None);
        let bits = access.bits();
        let mr = Mr { card, pdn, address, length, hca_va, access: bits, range, mapped, key, dm };
        self.make(&limits, mr, |session, mr| {
            let kind = KeyKind::Null;
            let command = CreateKey { va: 0, length: 0, iova: 0, pdn, access, kind, dm: 0 };
            let key = session.window(card)?.engine.create_key(&command)?;
            mr.key = Some(key);
            let client = &mut *session.client;
            let number = client.numbers.next(u32::MAX, |n| client.owned.mrs.contains_key(&n));
            Ok((number, Response::DmMr { mr: number, lkey: key, rkey: 0 }.into()))
        })
    }

    /// Gives a region another domain and other rights.
    pub(super) fn modify_mr(&mut self, mr: u32, pdn: u32, access: u32) -> Result<Answer, Error> {
        let pd = found(self.client.owned.pds.get(&pdn), pdn)?;
        let card = self.context(pd.context)?.card;
        let region = found(self.client.owned.mrs.get(&mr), mr)?;
        if region.card != card {
            return Err(Error::Invalid(format!(
                "protection domain {pdn} is another device's than memory region {mr}"
            )));
        }
        check_access(access)?;
        let Mr { address, length, hca_va, .. } = *region;
        let command = modify_key(mr, committed(mr, region)?, region, pdn, access)?;
        let limits = self.limits(card)?;
        check_name(
            card,
            &limits.capabilities,
            &WantedRegion { pdn, address, length, hca_va, access },
        )?;
        self.window(card)?.engine.modify_key(&command)?;
        if let Some(region) = self.client.owned.mrs.get_mut(&mr) {
            (region.pdn, region.access) = (pdn, access);
        }
        Ok(Response::Done.into())
    }

    /// Gives a region the memory that another one has reserved, and that one the former memory, which is let go as that
    /// of any region is.
    pub(super) fn move_mr(&mut self, mr: u32, to: u32) -> Result<Answer, Error> {
        let region = found(self.client.owned.mrs.get(&mr), mr)?;
        let other = found(self.client.owned.mrs.get(&to), to)?;
        let card = region.card;
        if other.card != card || other.key.is_some() {
            return Err(Error::Invalid(format!(
                "memory region {to} is committed, or another device's than memory region {mr}"
            )));
        }
        let key = committed(mr, region)?;
        let command = modify_key(to, key, other, other.pdn, other.access)?;
        self.limits(card)?;
        self.window(card)?.engine.modify_key(&command)?;
        let regions = &mut self.client.owned.mrs;
        if let (Some(mut old), Some(mut new)) = (regions.remove(&mr), regions.remove(&to)) {
            (old.key, new.key) = (None, Some(key));
            regions.insert(mr, new);
            regions.insert(to, old);
        }
        Ok(Response::Done.into())
    }

    pub(super) fn dereg_mr(&mut self, mr: u32) -> Result<Progress, Error> {
        if self.client.owned.leaving.is_empty() {
            let (mr, stopped) = self.client.take_out::<Mr>(self.cards, mr)?;
            self.client.give_region_up(mr, stopped);
        }
        match self.client.leave_regions(self.cards)? {
            true => Ok(Response::Done.into()),
            false => Ok(Progress::More),
        }
    }
}

/// The key of a region that has one.
fn committed(mr: u32, region: &Mr) -> Result<u32, Error> {
    region.key.ok_or_else(|| Error::Invalid(format!("memory region {mr} is not committed")))
}

/// The command that gives a key the memory of a region.
fn modify_key(mr: u32, key: u32, region: &Mr, pdn: u32, access: u32) -> Result<ModifyKey, Error> {
    Ok(ModifyKey {
        va: region.hca_va,
        length: region.length,
        iova: region_iova(mr, region)?,
        pdn,
        access: Access::from_bits_truncate(access),
        key,
    })
}

/// Where a card sees the first byte of a region.
fn region_iova(mr: u32, region: &Mr) -> Result<u64, Error> {
    let none = Error::NoSuch { object: "memory region with addresses", number: mr.into() };
    Ok(iova(region.range.as_ref().ok_or(none)?, region.address))
}

/// Where a card sees the first byte of a region that lies at `address` in its client.
fn iova(range: &IovaRange, address: u64) -> u64 {
    range.start().wrapping_add(address % PAGE)
}

/// Checks `ibv_access_flags` as the kernel does.
pub(super) fn check_access(access: u32) -> Result<(), Error> {
    let access = access & !IGNORABLE;
    if access & ON_DEMAND != 0 {
        return Err(Error::Unsupported(
            "memory on demand (IBV_ACCESS_ON_DEMAND) is not offered by this device".into(),
        ));
    }
    let known = Access::from_bits_truncate(access);
    if known.bits() != access {
        return Err(Error::Invalid(format!(
            "access flags {:#x} are unknown",
            access & !known.bits()
        )));
    }
    let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if known.intersects(remote_writes) && !known.contains(Access::LOCAL_WRITE) {
        return Err(Error::Invalid(
            "remote write and remote atomic access need IBV_ACCESS_LOCAL_WRITE".into(),
        ));
    }
    Ok(())
}

/// Checks that peers reach a region by the name that it is to have. A card that has nothing but WRITE and READ finds memory by
/// its address alone: by another one the bytes would land in the spare page, or in another region of that name.
fn check_name(card: u32, capabilities: &Capabilities, wanted: &WantedRegion) -> Result<(), Error> {
    let access = Access::from_bits_truncate(wanted.access);
    let peers = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let name = if access.contains(Access::ZERO_BASED) { 0 } else { wanted.hca_va };
    let is_found = capabilities.contains(Capabilities::SEND) || name == wanted.address;
    match access.intersects(peers) && !is_found {
        true => Err(Error::Unsupported(format!(
            "balboa{card} finds no key for its peers, and so their memory by its address alone; {:#x} by the name {name:#x} needs the tunnel",
            wanted.address
        ))),
        false => Ok(()),
    }
}

/// Bytes of the whole pages that a region touches; at least one page.
fn pages(wanted: &WantedRegion) -> Result<u64, Error> {
    let fault = || {
        Error::Invalid(format!(
            "memory {:#x} of {} bytes wraps around the end of the address space",
            wanted.address, wanted.length
        ))
    };
    wanted.hca_va.checked_add(wanted.length).ok_or_else(fault)?;
    let end = wanted.address.checked_add(wanted.length).ok_or_else(fault)?;
    let end = end.checked_next_multiple_of(PAGE).ok_or_else(fault)?;
    let start = wanted.address & !(PAGE.wrapping_sub(1));
    Ok(end.saturating_sub(start).max(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(address: u64, length: u64) -> WantedRegion {
        WantedRegion { pdn: 1, address, length, hca_va: address, access: 0 }
    }

    #[test]
    fn a_region_covers_the_pages_that_it_touches() {
        assert_eq!(pages(&wanted(0x1000, 1)).unwrap(), 0x1000);
        assert_eq!(pages(&wanted(0x1fff, 2)).unwrap(), 0x2000);
        assert_eq!(pages(&wanted(0x1001, 0)).unwrap(), 0x1000);
        assert!(pages(&wanted(u64::MAX, 2)).is_err());
        assert!(pages(&wanted(u64::MAX - 5, 2)).is_err());
        assert!(pages(&WantedRegion { hca_va: u64::MAX, ..wanted(0, 2) }).is_err());
    }

    #[test]
    fn access_flags_are_checked_as_the_manual_says() {
        assert!(check_access(Access::REMOTE_READ.bits()).is_ok());
        assert!(check_access(Access::REMOTE_WRITE.bits()).is_err());
        assert!(check_access((Access::REMOTE_WRITE | Access::LOCAL_WRITE).bits()).is_ok());
        assert_eq!(check_access(ON_DEMAND).unwrap_err().errno(), nix::errno::Errno::EOPNOTSUPP);
        assert!(check_access(1 << 15).is_err());
        assert!(check_access(1 << 7 | 1 << 25).is_ok());
    }
}
