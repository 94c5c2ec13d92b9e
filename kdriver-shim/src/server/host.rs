//! What the host shows of the cards, and what they take from it: addresses and counters.

use std::time::Instant;

use host_view::shadow_device::{Gid, ShadowDevices};
use host_view::sysfs::{CardPort, PortFiles};
use nix::sys::epoll::EpollFlags;
use shim_abi::PORTS_DIR;

use super::Server;
use crate::cards::{Card, find};
use crate::error::Error;
use crate::events;
use crate::machine::OnMachine;
use crate::poller::Token;
use crate::state_dir::StateDir;

impl Server {
    /// Lets the cards' addresses be those that the kernel's devices have.
    ///
    /// # Errors
    /// [`Error::Os`] when the news of them cannot be waited for.
    pub fn follow_addresses_of(&mut self, mut shadow: ShadowDevices) -> Result<(), Error> {
        self.poller.watch(&shadow, Token::Addresses, EpollFlags::EPOLLIN)?;
        for card in &mut self.cards {
            card.follows_kernel = shadow.name_of(card.device.number).is_some();
        }
        let changes = shadow.refresh(gid_tables(&self.cards), Instant::now());
        self.shadow = Some(shadow);
        self.set_gids(changes);
        Ok(())
    }

    /// Takes note of addresses that have changed, and tells the programs.
    pub(super) fn follow_addresses(&mut self) {
        let Some(shadow) = &mut self.shadow else { return };
        let changes = shadow.follow(gid_tables(&self.cards), Instant::now());
        self.set_gids(changes);
    }

    /// Lets cards have the addresses of the machine's own network that stand on it.
    ///
    /// # Errors
    /// [`Error::Os`] when the news of them cannot be waited for.
    pub fn follow_machine_of(&mut self, machine: OnMachine) -> Result<(), Error> {
        self.poller.watch(&machine, Token::Machine, EpollFlags::EPOLLIN)?;
        let mut tables = Vec::new();
        for card in &mut self.cards {
            card.on_machine = machine.device_of(card.device.number).map(str::to_owned);
            // None of the addresses that it came up with has a place already.
            let nothing = vec![Gid::default(); card.device.gids.len()];
            tables
                .extend(machine.now(card.device.number, &nothing).map(|now| (now.card, now.gids)));
        }
        self.machine = Some(machine);
        self.set_gids(tables);
        self.follow_machine();
        Ok(())
    }

    /// Takes note of addresses and links of the machine's that have changed, and tells the programs.
    pub(super) fn follow_machine(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        machine.follow(Instant::now());
        let mut changes = Vec::new();
        let there = self.cards.iter_mut().filter(|card| card.is_there());
        for card in there.filter(|card| card.on_machine.is_some()) {
            let Some(now) = machine.now(card.device.number, &card.device.gids) else { continue };
            if card.device.gids != now.gids {
                changes.push((now.card, now.gids));
            }
            if card.machine_is_up != now.is_up {
                // Where that fails all engines are dead, and what comes up begins on its cable.
                if card.device.set_link(now.is_up && !card.taken_off).is_ok() {
                    card.machine_is_up = now.is_up;
                    let state = if now.is_up { "up" } else { "down" };
                    log::info!("{}: its device of the machine's is {state}", card.device.name());
                }
            }
        }
        self.set_gids(changes);
    }

    fn set_gids(&mut self, changes: Vec<(u32, Vec<Gid>)>) {
        for (number, gids) in changes {
            let Ok(card) = find(&mut self.cards, number) else { continue };
            // The kernel's entries of VLANs are those of other network devices.
            let vlans = vec![0; gids.len()];
            match card.device.set_gids(gids, vlans) {
                Ok(true) => {
                    events::gids_changed(card);
                    self.connections.outdate_all();
                    self.port_files.hurry(Instant::now());
                }
                Ok(false) => {}
                Err(error) => log::error!("{}: its addresses stay: {error}", card.device.name()),
            }
        }
    }

    /// Writes the files of the ports if it is time, and tells of what was heard meanwhile.
    pub(super) fn write_ports(&mut self, now: Instant) {
        let programs = self.has_programs();
        let there = self.cards.iter_mut().filter(|card| card.is_there());
        self.port_files.refresh(there.map(port), programs, now);
        events::dispatch(&mut self.cards, &self.clients);
    }

    /// Writes the files of the ports now, for one of them has changed.
    pub(super) fn write_changed_ports(&mut self) {
        let now = Instant::now();
        self.port_files.hurry(now);
        self.write_ports(now);
    }
}

/// Makes the files of the ports in a state directory that is ours.
pub(super) fn port_files(state: &StateDir, cards: &mut [Card]) -> Result<PortFiles, Error> {
    let cards: Vec<_> = cards.iter_mut().map(port).collect();
    PortFiles::new(state.directory(), &cards, Instant::now()).map_err(|error| Error::StateDir {
        dir: state.path().to_owned(),
        why: format!("{PORTS_DIR} in it cannot be made: {error}"),
    })
}

fn port(card: &mut Card) -> CardPort {
    CardPort { name: card.device.name(), port: card.port(), counters: card.device.counters() }
}

fn gid_tables(cards: &[Card]) -> impl Iterator<Item = (u32, &[Gid])> {
    let there = cards.iter().filter(|card| card.is_there());
    there.map(|card| (card.device.number, card.device.gids.as_slice()))
}
