//! The port's addresses, of which each window's engine is told by its own commands.

use roce::{Address, Gid, GidTable, MacAddr, Stack};

use crate::WINDOWS;

/// The addresses a driver gave the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) mac: [u8; 6],
    pub(crate) ipv4: u32,
}

/// The GID tables of all windows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gids {
    windows: [GidTable; WINDOWS as usize],
}

impl Gids {
    /// Takes note of an entry of a window's table.
    pub(crate) fn set(&mut self, window: usize, index: u8, address: Option<Address>) {
        let table = self.windows.get_mut(window);
        if let Some(entry) = table.and_then(|table| table.get_mut(usize::from(index))) {
            *entry = address;
        }
    }

    /// Gives the port all entries: an engine that stops takes none from the others. While there are
    /// none, the port has the addresses of the shell's registers. The entries.
    pub(crate) fn apply(&self, stack: &mut Stack, identity: Identity) -> GidTable {
        let mut gids = GidTable::default();
        for (index, entry) in gids.iter_mut().enumerate() {
            *entry = self.windows.iter().find_map(|table| table.get(index).copied().flatten());
        }
        if gids.iter().all(Option::is_none) {
            let own = [
                Gid::from_ipv6(MacAddr(identity.mac).link_local()),
                Gid::from_ipv4(identity.ipv4.into()),
            ];
            for (entry, gid) in gids.iter_mut().zip(own) {
                *entry = Some(gid.into());
            }
        }
        stack.set_gids(gids);
        gids
    }
}

#[cfg(test)]
mod tests {
    use roce::{IcrcPolicy, PathMtu, StackConfig};

    use super::*;

    #[test]
    fn an_address_is_the_ports_as_long_as_one_window_has_it() {
        let identity = Identity { mac: [2, 0, 0, 0, 0, 1], ipv4: 0x0a00_0001 };
        let mut stack = Stack::new(StackConfig {
            mac: MacAddr(identity.mac),
            ipv4: identity.ipv4.into(),
            mtu_max: PathMtu::Mtu4096,
            icrc_policy: IcrcPolicy::CheckAll,
        });
        let (first, other) = (stack.gid(1), Gid::from_ipv4([10, 9, 0, 1].into()));
        let mut gids = Gids::default();
        let mut given = |window, gid: Option<Gid>| {
            gids.set(window, 1, gid.map(Address::untagged));
            gids.apply(&mut stack, identity);
            (stack.gid(0), stack.gid(1))
        };
        assert_eq!(given(0, Some(other)), (None, Some(other)));
        assert_eq!(given(3, Some(other)), (None, Some(other)));
        assert_eq!(given(0, None), (None, Some(other)));
        let own = (Some(Gid::from_ipv6(MacAddr(identity.mac).link_local())), first);
        assert_eq!(given(3, None), own, "without tables the shell's registers hold");
        gids.set(9, 1, Some(other.into()));
        gids.set(0, 200, Some(other.into()));
    }
}
