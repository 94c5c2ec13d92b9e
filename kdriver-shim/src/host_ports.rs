//! The cards' ports on the host: the addresses and links that they take from it, and the files that show them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use host_view::shadow_device::{Gid, ShadowDevices};
use host_view::sysfs::{CardPort, PortFiles};
use nix::sys::epoll::EpollFlags;
use shim_abi::PORTS_DIR;

use crate::cards::{Card, find};
use crate::error::Error;
use crate::events;
use crate::machine::OnMachine;
use crate::poller::{Poller, Token};
use crate::state_dir::StateDir;
use crate::surroundings::Surroundings;

/// The ports as the host shows them, and the sources that they follow.
pub struct HostPorts {
    files: PortFiles,
    /// What the files show of each card, by its number.
    shown: BTreeMap<u32, Shown>,
    /// Somebody asked balboad for something, or a card reported, since the cards were last looked at.
    stirred: bool,
    shadow: Option<ShadowDevices>,
    machine: Option<OnMachine>,
}

/// A card's port and counters when they were read.
struct Shown {
    /// The card's activity before.
    activity: u64,
    port: CardPort,
}

impl HostPorts {
    /// Makes the files of the ports in a state directory that is ours; they follow nothing yet.
    ///
    /// # Errors
    /// [`Error::StateDir`] when the files cannot be made.
    pub fn new(state: &StateDir, cards: &mut [Card]) -> Result<Self, Error> {
        let cards: Vec<_> = cards.iter_mut().map(port).collect();
        let files = PortFiles::new(state.directory(), &cards, Instant::now());
        let files = files.map_err(|error| Error::StateDir {
            dir: state.path().to_owned(),
            why: format!("{PORTS_DIR} in it cannot be made: {error}"),
        })?;
        let shown = BTreeMap::new();
        Ok(Self { files, shown, stirred: true, shadow: None, machine: None })
    }

    /// Makes the cards' addresses follow those of the kernel's devices.
    ///
    /// # Errors
    /// [`Error::Os`] when the news of them cannot be waited for.
    pub fn follow_addresses_of(
        &mut self,
        around: &mut Surroundings<'_>,
        poller: &Poller,
        mut shadow: ShadowDevices,
    ) -> Result<(), Error> {
        poller.watch(&shadow, Token::Addresses, EpollFlags::EPOLLIN)?;
        for card in around.cards.iter_mut() {
            card.follows_kernel = shadow.name_of(card.device.number).is_some();
        }
        let changes = shadow.refresh(gid_tables(around.cards), Instant::now());
        self.shadow = Some(shadow);
        self.set_gids(around, changes);
        Ok(())
    }

    /// Reads changed addresses, and tells the programs.
    pub fn follow_addresses(&mut self, around: &mut Surroundings<'_>) {
        let Some(shadow) = &mut self.shadow else { return };
        let changes = shadow.follow(gid_tables(around.cards), Instant::now());
        self.set_gids(around, changes);
    }

    /// Makes the addresses of cards on the machine's own network follow the machine's.
    ///
    /// # Errors
    /// [`Error::Os`] when the news of them cannot be waited for.
    pub fn follow_machine_of(
        &mut self,
        around: &mut Surroundings<'_>,
        poller: &Poller,
        machine: OnMachine,
    ) -> Result<(), Error> {
        if let Some(news) = machine.news() {
            poller.watch(news, Token::Machine, EpollFlags::EPOLLIN)?;
        }
        let mut tables = Vec::new();
        for card in around.cards.iter_mut() {
            card.on_machine = machine.device_of(card.device.number).map(str::to_owned);
            // None of the addresses that it came up with has a place already.
            let nothing = vec![Gid::default(); card.device.gids.len()];
            tables
                .extend(machine.now(card.device.number, &nothing).map(|now| (now.card, now.gids)));
        }
        self.machine = Some(machine);
        self.set_gids(around, tables);
        self.follow_machine(around);
        Ok(())
    }

    /// Reads changed addresses and links of the machine's, and tells the programs.
    pub fn follow_machine(&mut self, around: &mut Surroundings<'_>) {
        let Some(machine) = &mut self.machine else { return };
        machine.follow(Instant::now());
        let mut changes = Vec::new();
        let there = around.cards.iter_mut().filter(|card| card.is_there());
        for card in there.filter(|card| card.on_machine.is_some()) {
            let Some(now) = machine.now(card.device.number, &card.device.gids) else { continue };
            if card.device.gids != now.gids {
                changes.push((now.card, now.gids));
            }
            if std::mem::replace(&mut card.machine_mtu, now.mtu) != now.mtu {
                self.files.hurry(Instant::now());
            }
            if card.machine_is_up != now.is_up {
                // If that fails, all engines are dead, and new ones begin on their cables.
                if card.device.set_link(now.is_up && !card.taken_off).is_ok() {
                    card.machine_is_up = now.is_up;
                    let state = if now.is_up { "up" } else { "down" };
                    log::info!("{}: its device of the machine's is {state}", card.device.name());
                }
            }
        }
        self.set_gids(around, changes);
    }

    fn set_gids(&mut self, around: &mut Surroundings<'_>, changes: Vec<(u32, Vec<Gid>)>) {
        for (number, gids) in changes {
            let Ok(card) = find(around.cards, number) else { continue };
            // The kernel's entries of VLANs are those of other network devices.
            let vlans = vec![0; gids.len()];
            match card.device.set_gids(gids, vlans) {
                Ok(true) => {
                    events::gids_changed(card);
                    around.connections.outdate_all();
                    self.hurry(Instant::now());
                }
                Ok(false) => {}
                Err(error) => log::error!("{}: its addresses stay: {error}", card.device.name()),
            }
        }
    }

    /// Writes the files of the ports if it is time, and reports changes since; `programs` is whether any is connected.
    pub fn write(&mut self, around: &mut Surroundings<'_>, programs: bool, now: Instant) {
        let Self { files, shown, stirred, .. } = self;
        let is_due = files.patience(programs, now).is_some_and(|patience| patience.is_zero());
        let there = around.cards.iter_mut().filter(|card| card.is_there());
        files.refresh(there.map(|card| look_at(card, shown, *stirred)), programs, now);
        *stirred &= !is_due;
        around.dispatch();
    }

    /// Notes that an event may have changed the contents of the files.
    pub fn stir(&mut self) {
        self.stirred = true;
    }

    /// Writes the files of the ports at the next look.
    pub fn hurry(&mut self, now: Instant) {
        self.stir();
        self.files.hurry(now);
    }

    /// The time without work.
    pub fn patience(&self, programs: bool, now: Instant) -> Option<Duration> {
        let addresses = self.shadow.as_ref().and_then(|shadow| shadow.patience(now));
        let machine = self.machine.as_ref().and_then(|machine| machine.patience(now));
        let files = self.files.patience(programs, now);
        files.into_iter().chain(addresses).chain(machine).min()
    }

    /// The devices of the kernel's that show the cards, if any do.
    pub fn shadow(&self) -> Option<&ShadowDevices> {
        self.shadow.as_ref()
    }
}

/// A card's port and counters, which are read only where they may have changed: a card that only counts time is left
/// asleep.
fn look_at(card: &mut Card, shown: &mut BTreeMap<u32, Shown>, stirred: bool) -> CardPort {
    // Before the counters, so that later changes are read the next time.
    let activity = card.device.activity();
    let before = shown.get(&card.device.number).filter(|_| !stirred);
    if let Some(before) = before.filter(|before| Some(before.activity) == activity) {
        return before.port.clone();
    }
    let port = port(card);
    match activity {
        Some(activity) => {
            shown.insert(card.device.number, Shown { activity, port: port.clone() });
        }
        None => {
            shown.remove(&card.device.number);
        }
    }
    port
}

fn port(card: &mut Card) -> CardPort {
    CardPort { name: card.device.name(), port: card.port(), counters: card.device.counters() }
}

fn gid_tables(cards: &[Card]) -> impl Iterator<Item = (u32, &[Gid])> {
    let there = cards.iter().filter(|card| card.is_there());
    there.map(|card| (card.device.number, card.device.gids.as_slice()))
}
