//! What the host shows of the cards, and what they take from it: addresses and counters.

use std::time::Instant;

use host_view::shadow_device::{Gid, ShadowDevices};
use host_view::sysfs::{CardCounters, CounterFiles};
use nix::sys::epoll::EpollFlags;
use shim_abi::COUNTERS_DIR;

use super::Server;
use crate::cards::{Card, find};
use crate::error::Error;
use crate::events;
use crate::poller::Token;
use crate::state_dir::StateDir;

impl Server {
    /// Lets the cards' addresses be those that the kernel's devices have.
    ///
    /// # Errors
    /// [`Error::Os`] when the news of them cannot be waited for.
    pub fn follow_addresses_of(&mut self, mut shadow: ShadowDevices) -> Result<(), Error> {
        self.poller.watch(&shadow, Token::Addresses, EpollFlags::EPOLLIN)?;
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

    fn set_gids(&mut self, changes: Vec<(u32, Vec<Gid>)>) {
        for (number, gids) in changes {
            let Ok(card) = find(&mut self.cards, number) else { continue };
            match card.device.set_gids(gids) {
                Ok(true) => events::gids_changed(card),
                Ok(false) => {}
                Err(error) => log::error!("{}: its addresses stay: {error}", card.device.name()),
            }
        }
    }

    /// Writes the counters' files if it is time, and tells of what was heard meanwhile.
    pub(super) fn write_counters(&mut self, now: Instant) {
        let programs = self.has_programs();
        self.counter_files.refresh(self.cards.iter_mut().map(counters), programs, now);
        events::dispatch(&mut self.cards, &self.clients);
    }
}

/// Makes the counters' files in a state directory that is ours.
pub(super) fn counter_files(state: &StateDir, cards: &mut [Card]) -> Result<CounterFiles, Error> {
    let cards: Vec<_> = cards.iter_mut().map(counters).collect();
    CounterFiles::new(state.directory(), &cards, Instant::now()).map_err(|error| Error::StateDir {
        dir: state.path().to_owned(),
        why: format!("{COUNTERS_DIR} in it cannot be made: {error}"),
    })
}

fn counters(card: &mut Card) -> CardCounters {
    CardCounters { name: card.device.name(), values: card.device.counters() }
}

fn gid_tables(cards: &[Card]) -> impl Iterator<Item = (u32, &[Gid])> {
    cards.iter().map(|card| (card.device.number, card.device.gids.as_slice()))
}
