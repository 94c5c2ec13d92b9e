//! The XRC domains of a card, and the targets in them, which several clients share.
//!
//! A domain lives as long as a client has it open, a target as long as a client that made or opened it has it.
//! Each such client owns a handle; the last one ends the domain or target.

use std::collections::BTreeMap;

use fpga_regs::engine::qp::QpState;
use shim_abi::FileId;

use crate::claims::{CardQp, Peer};
use crate::error::Error;
use crate::numbers::Numbers;
use crate::process::ClientId;

/// Numbers of domains have so many bits, as those of protection domains.
const NUMBER_END: u32 = 1 << 24;

/// A domain.
#[derive(Debug)]
struct Domain {
    /// The file that stands for it; without one no other client can open it.
    file: Option<FileId>,
    handles: u32,
}

/// A target.
#[derive(Debug)]
pub struct SharedTarget {
    /// The domain that it is of.
    pub xrcdn: u32,
    /// The window whose engine made it, and its number there.
    pub qp: CardQp,
    /// The client that made it.
    pub maker: ClientId,
    /// The connection it speaks for, from RTR on.
    pub peer: Option<Peer>,
    /// State it was last seen in.
    pub state: QpState,
    handles: u32,
}

/// The domains of a card, and the targets in them.
#[derive(Debug, Default)]
pub struct XrcDomains {
    domains: BTreeMap<u32, Domain>,
    numbers: Numbers,
    targets: BTreeMap<u32, SharedTarget>,
    target_numbers: Numbers,
}

impl XrcDomains {
    /// Opens the domain of a file, or one without a file, and returns its number.
    ///
    /// # Errors
    /// [`Error::NoDomain`] where there is none and none is to be made, [`Error::Invalid`] where there is one
    /// and it was to be a new one.
    pub fn open(
        &mut self,
        file: Option<FileId>,
        creates: bool,
        exclusive: bool,
    ) -> Result<u32, Error> {
        let known = file
            .and_then(|file| self.domains.iter_mut().find(|(_, domain)| domain.file == Some(file)));
        match known {
            Some(_) if exclusive => {
                let why =
                    "an XRC domain stands for this file already, and O_EXCL asks for a new one";
                Err(Error::Invalid(why.into()))
            }
            Some((number, domain)) => {
                domain.handles = domain.handles.saturating_add(1);
                Ok(*number)
            }
            None if file.is_some() && !creates => Err(Error::NoDomain),
            None => {
                let domains = &mut self.domains;
                let number = self.numbers.next(NUMBER_END, |n| domains.contains_key(&n));
                domains.insert(number, Domain { file, handles: 1 });
                Ok(number)
            }
        }
    }

    /// Gives up a handle of a domain; the last one ends it.
    pub fn close(&mut self, xrcdn: u32) {
        let Some(domain) = self.domains.get_mut(&xrcdn) else { return };
        domain.handles = domain.handles.saturating_sub(1);
        if domain.handles == 0 {
            self.domains.remove(&xrcdn);
        }
    }

    /// Adds a new target, of which its maker has the one handle; returns its number here.
    pub fn add(&mut self, xrcdn: u32, qp: CardQp, maker: ClientId) -> u32 {
        let targets = &mut self.targets;
        let number = self.target_numbers.next(u32::MAX, |n| targets.contains_key(&n));
        let (peer, state, handles) = (None, QpState::Reset, 1);
        targets.insert(number, SharedTarget { xrcdn, qp, maker, peer, state, handles });
        number
    }

    /// Another handle of the target of a domain that has that QP number; answers its number here.
    ///
    /// # Errors
    /// [`Error::NoSuch`] where the domain has no such target.
    pub fn share(&mut self, xrcdn: u32, qpn: u32) -> Result<u32, Error> {
        let is_it = |(_, it): &(&u32, &mut SharedTarget)| it.xrcdn == xrcdn && it.qp.qpn == qpn;
        let none = Error::NoSuch { object: "XRC target in that domain", number: qpn.into() };
        let (number, target) = self.targets.iter_mut().find(is_it).ok_or(none)?;
        target.handles = target.handles.saturating_add(1);
        Ok(*number)
    }

    /// A target.
    #[must_use]
    pub fn target(&self, number: u32) -> Option<&SharedTarget> {
        self.targets.get(&number)
    }

    /// A target, to change it.
    pub fn target_mut(&mut self, number: u32) -> Option<&mut SharedTarget> {
        self.targets.get_mut(&number)
    }

    /// The target whose last handle is about to be given up.
    #[must_use]
    pub fn last(&self, number: u32) -> Option<&SharedTarget> {
        self.targets.get(&number).filter(|target| target.handles == 1)
    }

    /// Gives up a handle of a target; answers the target with the last one.
    pub fn leave(&mut self, number: u32) -> Option<SharedTarget> {
        let target = self.targets.get_mut(&number)?;
        target.handles = target.handles.saturating_sub(1);
        if target.handles == 0 { self.targets.remove(&number) } else { None }
    }

    /// Takes out the targets of a window whose engine is started anew; their handles lead nowhere.
    pub fn forget_window(&mut self, window: u8) -> impl Iterator<Item = SharedTarget> + use<> {
        let all = std::mem::take(&mut self.targets);
        let (gone, kept): (BTreeMap<_, _>, _) =
            all.into_iter().partition(|(_, target)| target.qp.window == window);
        self.targets = kept;
        gone.into_values()
    }

    /// The numbers of domains and targets.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        (self.domains.len(), self.targets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { device: 1, inode: 2 };

    #[test]
    fn a_domain_is_of_those_who_name_one_file_and_ends_with_the_last() {
        let mut xrc = XrcDomains::default();
        let absent = xrc.open(Some(FILE), false, false).unwrap_err();
        assert_eq!(absent.errno(), nix::errno::Errno::EAGAIN);
        let first = xrc.open(Some(FILE), true, true).unwrap();
        assert_eq!(xrc.open(Some(FILE), false, false).unwrap(), first);
        let exclusive = xrc.open(Some(FILE), true, true).unwrap_err();
        assert_eq!(exclusive.errno(), nix::errno::Errno::EINVAL);
        let other = FileId { inode: 3, ..FILE };
        assert_ne!(xrc.open(Some(other), true, false).unwrap(), first);
        assert_ne!(xrc.open(None, true, false).unwrap(), xrc.open(None, true, false).unwrap());
        xrc.close(first);
        assert_eq!(xrc.open(Some(FILE), false, false).unwrap(), first);
        xrc.close(first);
        xrc.close(first);
        assert!(xrc.open(Some(FILE), false, false).is_err());
    }

    #[test]
    fn a_target_is_shared_within_its_domain_and_ends_with_the_last_handle() {
        let mut xrc = XrcDomains::default();
        let (one, other) =
            (xrc.open(None, true, false).unwrap(), xrc.open(None, true, false).unwrap());
        let qp = CardQp { window: 3, qpn: 0x30_0007 };
        let number = xrc.add(one, qp, ClientId(1));
        assert!(xrc.last(number).is_some());
        assert!(xrc.share(other, qp.qpn).is_err());
        assert_eq!(xrc.share(one, qp.qpn).unwrap(), number);
        assert!(xrc.last(number).is_none());
        assert!(xrc.leave(number).is_none());
        assert_eq!(xrc.leave(number).unwrap().qp, qp);
        assert!(xrc.leave(number).is_none() && xrc.share(one, qp.qpn).is_err());
        let number = xrc.add(one, qp, ClientId(1));
        assert_eq!(xrc.forget_window(2).count(), 0);
        assert_eq!(xrc.count().1, 1);
        assert_eq!(xrc.forget_window(3).map(|target| target.qp).collect::<Vec<_>>(), [qp]);
        assert!(xrc.target(number).is_none());
    }
}
