//! The cards as clients share them: doorbell pages, listeners, and which connections are whose.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Bound;
use std::sync::Arc;

use bitstreams::Manifest;
use card_driver::Error as DriverError;
use card_driver::address::{PortAddress, node_guid};
use card_driver::backend::{CardBackend, GrantKind, Takes};
use card_driver::bringup::bring_up_with;
use card_driver::device::{self, Device};
use card_driver::engine::{Engine, EngineLimits};
use card_driver::gsi::Gsi;
use card_driver::hosted::HostedOptions;
use card_driver::iova::IovaRange;
use card_driver::loading::{Loading, Pace, wants_image};
use card_driver::spans::Span;
use fpga_regs::engine::window::{Capabilities, DOORBELL_PAGES, RELAY_PAGE};
use services::Loaded;
use shim_abi::{CardInfo, Limits, PortInfo};

use crate::claims::Claims;
use crate::error::Error;
use crate::images::record::Record;
use crate::images::{self, AGAIN};
use crate::listeners::Listeners;
use crate::machine;
use crate::process::ClientId;
use crate::quota::Resource;
use crate::rings::RING_MEMORY_BYTES;
use crate::xrc::XrcDomains;

/// The P_Key table: the default partition, full member.
const PKEYS: [u16; 1] = [0xffff];
/// `ibv_mtu` of 4096 bytes.
const LARGEST_MTU: u8 = 5;
/// `ibv_mtu` of 256 bytes.
const SMALLEST_MTU: u8 = 1;

/// A card, and its clients' share of it.
pub struct Card {
    /// The card as its driver has it.
    pub device: Device,
    /// The users of its windows: in the order of the device's.
    pub users: Vec<Users>,
    /// The connections that its QPs speak for.
    pub claims: Claims,
    /// XRC domains, and the targets in them.
    pub xrc: XrcDomains,
    /// Resources that were leaked because the card did not confirm their end.
    pub quarantine: Quarantine,
    /// The kernel wants it back.
    pub wanted_back: bool,
    /// Its addresses are those of a network device of the kernel's.
    pub follows_kernel: bool,
    /// Its addresses are the machine's own, by the name of their device.
    pub on_machine: Option<String>,
    /// Its port was last told that this device is up.
    pub machine_is_up: bool,
    /// The code of the largest path MTU that each of the machine's routes by this device carries.
    pub machine_mtu: u8,
    /// Whether its administrator took it off its cable.
    pub taken_off: bool,
    /// Its images.
    pub record: Record,
    /// The reason why no client can use it, with any engine.
    pub unusable: Option<String>,
    /// Why it did not come up, so that no engine of it lives: by a reset that is asked for it may, and it can be flashed.
    pub failure: Option<String>,
    /// The vFPGA that is being given an image of its own.
    pub reloading: Option<u8>,
    /// The services of users that were loaded into it.
    pub loaded: Loaded,
    /// Its queue pair 1, where connections are managed by it.
    pub gsi: Option<Arc<Gsi>>,
    /// The remains of a card that was reset, if it is none any more.
    pub remains: Option<Remains>,
}

/// The remains of a card that was reset.
#[derive(Debug)]
pub struct Remains {
    /// The number of the card.
    pub of: u32,
    /// Addresses where programs may still map memory; none, where they do not do that themselves.
    pub addresses: Vec<Span>,
    /// The same addresses, withheld in the arena of the card that came up.
    pub held: Vec<IovaRange>,
}

/// Resources whose end the card has not confirmed, beside I/O virtual addresses, which the device's arena counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    /// Queue pairs, receive queues and completion queues.
    pub queues: u64,
    /// Keys.
    pub keys: u64,
    /// Doorbell pages.
    pub pages: u64,
}

/// The owner of a place in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// It has no owner.
    Free,
    /// A client's.
    Client(ClientId),
    /// A client's that is gone, but the engine may still have queues on it.
    Quarantined,
    /// It is a client's that has it of the card before a reset, and still reaches it.
    Former,
    /// The driver's own, by which it rings for queue pair 1, and for the clients behind the doorbell pages.
    Driver,
}

/// A window of a card: its engine, and its users.
pub struct Window<'a> {
    /// Number of the vFPGA.
    pub index: u8,
    /// The engine.
    pub engine: &'a mut dyn Engine,
    /// Its users.
    pub users: &'a mut Users,
}

/// The users of a window of a card.
pub struct Users {
    /// The places for clients, by their numbers from 1 on: the doorbell pages, and behind them, where the
    /// driver relays, those whose doorbells come by [`RELAY_PAGE`].
    pub pages: Vec<Page>,
    /// Its queues, and the receivers of their events.
    pub listeners: Arc<Listeners>,
    /// Objects to look at because events were lost.
    pub suspects: Suspects,
    /// Whether its engine is dead, and starts anew as soon as the card has confirmed everything.
    pub waits_for_card: bool,
}

/// Queues of which events may have been lost; they are looked at by turns.
#[derive(Debug, Default)]
pub struct Suspects {
    /// Completion queues for which programs wait.
    pub cqs: Round,
    /// Queue pairs.
    pub qps: Round,
    /// Shared receive queues with a limit.
    pub srqs: Round,
}

/// Numbers that are taken in turn, so that none waits behind one that is put back again and again.
#[derive(Debug, Default)]
pub struct Round {
    waiting: BTreeSet<u32>,
    /// The number that was taken last.
    last: u32,
}

impl Round {
    /// Puts numbers in, of which some may be there already.
    pub fn add(&mut self, mut numbers: BTreeSet<u32>) {
        self.waiting.append(&mut numbers);
    }

    /// Takes the next number behind the last one taken.
    pub fn take(&mut self) -> Option<u32> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = *self.waiting.range(behind).next().or_else(|| self.waiting.first())?;
        self.last = next;
        self.waiting.take(&next)
    }

    /// Whether none is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Suspects {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cqs.is_empty() && self.qps.is_empty() && self.srqs.is_empty()
    }
}

impl Users {
    /// No users, of a window whose engine has just started; reports its events from now on.
    #[must_use]
    pub fn none(card: u32, window: &mut device::Window, relays: bool) -> Self {
        let listeners = Arc::new(Listeners::new(card, window.index));
        let told = Arc::clone(&listeners);
        window.engine.listen(Arc::new(move |event| told.tell(event)));
        let (suspects, waits_for_card) = Default::default();
        Self { pages: places(relays), listeners, suspects, waits_for_card }
    }

    /// Forgets all users, none of which has anything of the window.
    pub fn forget(&mut self) {
        for page in self.pages.iter_mut().filter(|page| **page != Page::Driver) {
            *page = Page::Free;
        }
        self.listeners.clear();
        (self.suspects, self.waits_for_card) = Default::default();
    }

    /// The number of clients that can have a doorbell page, and of those that can be relayed beside them.
    #[must_use]
    pub fn places(&self) -> [usize; 2] {
        self.count(|page| page != Page::Driver)
    }

    /// Doorbell pages that are free, and places beside them.
    #[must_use]
    pub fn free(&self) -> [usize; 2] {
        self.count(|page| page == Page::Free)
    }

    fn count(&self, counts: impl Fn(Page) -> bool) -> [usize; 2] {
        let (own, relayed) = self.pages.split_at(self.pages.len().min(DOORBELL_PAGES.into()));
        [own, relayed].map(|part| part.iter().filter(|page| counts(**page)).count())
    }

    /// Takes a free place for a client, a doorbell page if there is one, and returns its number.
    pub fn take_page(&mut self, client: ClientId) -> Option<u8> {
        let (number, page) = (1u8..).zip(&mut self.pages).find(|(_, page)| **page == Page::Free)?;
        *page = Page::Client(client);
        Some(number)
    }

    /// Changes whose a page is.
    pub fn set_page(&mut self, number: u8, owner: Page) {
        if let Some((_, page)) = (1u8..).zip(&mut self.pages).find(|(n, _)| *n == number) {
            *page = owner;
        }
    }

    /// The pages that clients have.
    pub fn pages_of_clients(&self) -> impl Iterator<Item = u8> {
        let pages = (1..=u8::MAX).zip(&self.pages);
        pages.filter(|(_, page)| matches!(page, Page::Client(_))).map(|(number, _)| number)
    }

    /// Frees each [`Page::Former`] that no client `has` any more.
    pub fn free_former(&mut self, has: impl Fn(u8) -> bool) {
        for (number, page) in (1..=u8::MAX).zip(&mut self.pages) {
            if *page == Page::Former && !has(number) {
                *page = Page::Free;
            }
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn are_none(&self) -> bool {
        !self.pages.iter().any(|page| matches!(page, Page::Client(_)))
    }
}

impl Card {
    /// A card that has just come up, of which nothing is used.
    #[must_use]
    pub fn new(mut device: Device) -> Self {
        let users = nobody(&mut device);
        let (claims, xrc, quarantine) = Default::default();
        let (wanted_back, follows_kernel, on_machine) = Default::default();
        let (gsi, reloading, remains) = Default::default();
        let takes_images = device.backend.takes() == Takes::SoftImages;
        if takes_images && !device.windows.is_empty() {
            // A card behind VFIO has the windows that were found.
            let found = u8::try_from(device.windows.len()).ok();
            device.manifest.regions = device.manifest.regions.or(found);
        }
        let current = takes_images.then(|| images::initial(&device.manifest)).flatten();
        // The bytes of a bitstream with which a card came are unknown.
        let record = Record::new(current.map(|(name, _)| name));
        let (unusable, failure) = (None, None);
        Self {
            device,
            users,
            claims,
            xrc,
            quarantine,
            wanted_back,
            follows_kernel,
            on_machine,
            machine_is_up: true,
            machine_mtu: LARGEST_MTU,
            taken_off: false,
            record,
            unusable,
            failure,
            reloading,
            loaded: Loaded::default(),
            gsi,
            remains,
        }
    }

    /// A card that balboad starts with: brought up, unless it is known to hold no image, or is seen to have lost it. One
    /// that does not come up keeps no other from being served: it has no engine, and says why.
    ///
    /// # Errors
    /// The driver's, if its interrupts could not be served, and [`DriverError::Limit`] if it does not come up for want
    /// of a resource: balboad's programs lack it as well.
    pub fn start(
        number: u32,
        backend: Arc<dyn CardBackend>,
        address: PortAddress,
        manifest: Manifest,
        record: Option<Record>,
        options: HostedOptions,
    ) -> Result<Self, Error> {
        let (mut record, mut failure) = (record, None);
        let up = match record.as_ref().is_none_or(|record| record.needs.is_none()) {
            true => {
                let way = Arc::clone(&backend);
                match bring_up_with(number, way, address, &manifest, options.clone()) {
                    Ok(device) => Some(device),
                    Err(error @ DriverError::Limit(_)) => return Err(error.into()),
                    Err(error) if wants_image(number, &*backend, &manifest, record.is_some()) => {
                        record.get_or_insert_with(|| Record::new(None)).lose(error.to_string());
                        None
                    }
                    Err(error) => {
                        log::error!("balboa{number}: does not come up: {error}");
                        failure = Some(error.to_string());
                        None
                    }
                }
            }
            false => None,
        };
        let mut card =
            Self::new(up.unwrap_or_else(|| {
                Device::without_image(number, backend, address, manifest, options)
            }));
        card.record = record.unwrap_or(card.record);
        card.failure = failure;
        card.look_for_engines();
        card.tell_need();
        if let Some(why) = &card.unusable {
            log::error!("balboa{number}: {why}");
        }
        card.device.serve_interrupts()?;
        card.manage_connections();
        Ok(card)
    }

    /// Takes an unused card from its engines, for an image.
    ///
    /// # Errors
    /// The driver's: then nothing was given to it.
    pub fn begin_loading(&mut self, image: Arc<Vec<u8>>, pace: Pace) -> Result<Loading, Error> {
        let begun = self.device.begin_loading(image, pace);
        self.let_engines_go();
        Ok(begun?)
    }

    /// Marks the card unusable if it needs to be flashed again. Its earlier description of itself no longer holds
    /// then.
    pub fn tell_need(&mut self) {
        self.unusable = self.record.needs.as_ref().map(|why| format!("{AGAIN}: {why}"));
        if self.unusable.is_some() {
            self.device.said = None;
        }
        self.failure = self.failure.take().filter(|_| self.unusable.is_none());
    }

    /// Notes which of the vFPGAs that had no image are seen to have an engine.
    fn look_for_engines(&mut self) {
        let found: Vec<_> = self.device.windows.iter().map(|window| window.index).collect();
        self.record.find(&found);
    }

    /// Whether the engine of a window must not start by itself: its vFPGA has no image, or is given one.
    #[must_use]
    pub fn is_held(&self, window: u8) -> bool {
        self.reloading == Some(window) || self.record.vfpgas.contains_key(&window)
    }

    /// Drops its engines.
    pub fn let_engines_go(&mut self) {
        self.device.let_engines_go();
        self.users.clear();
        self.gsi = None;
    }

    /// Brings it up with an image that it has taken; whether that is seen.
    ///
    /// # Errors
    /// The driver's: it has no engine then.
    pub fn finish_loading(&mut self, loading: &Loading, manifest: Manifest) -> Result<bool, Error> {
        self.come_up(|device, up| device.finish_loading(loading, manifest, up))
    }

    /// Brings it up again with the image that it had.
    ///
    /// # Errors
    /// The driver's: it has no engine then, and a failure, unless it needs to be flashed or is seen to hold no image.
    pub fn keep_image(&mut self) -> Result<(), Error> {
        let up = self.come_up(|device, up| device.keep_image(up));
        if let Err(error) = &up {
            let lost = self.record.needs.is_some() || self.is_without_image();
            self.failure = (!lost).then(|| error.to_string());
        }
        up
    }

    fn come_up<T>(
        &mut self,
        come_up: impl FnOnce(&mut Device, &mut dyn FnMut(&mut Device)) -> Result<T, DriverError>,
    ) -> Result<T, Error> {
        let Self { device, users, claims, xrc, quarantine, failure, .. } = self;
        let Self { machine_is_up, taken_off, .. } = self;
        let outcome = come_up(device, &mut |device| {
            *users = nobody(device);
            (*claims, *xrc, *quarantine, *failure) = Default::default();
            // It begins on its cable.
            (*machine_is_up, *taken_off) = (true, false);
        })?;
        self.manage_connections();
        Ok(outcome)
    }

    /// Brings it up anew after it was reset. No client may have a place on it: see [`Self::part`].
    ///
    /// # Errors
    /// The driver's; it then stays as dead as it was, or has no engine and needs to be flashed again.
    pub fn renew(&mut self) -> Result<(), Error> {
        let Self { device, users, claims, xrc, quarantine, wanted_back, gsi, failure, .. } = self;
        let Self { machine_is_up, taken_off, .. } = self;
        *gsi = None;
        let up = device.renew(|device| {
            *users = nobody(device);
            (*claims, *xrc, *quarantine, *wanted_back, *failure) = Default::default();
            // It begins on its cable.
            (*machine_is_up, *taken_off) = (true, false);
        });
        if let Err(error) = up {
            // Another program may have put another image into it.
            self.device.said = None;
            if self.has_lost_image(&error) {
                self.record.lose(error.to_string());
                self.tell_need();
                self.let_engines_go();
            } else {
                self.failure = Some(error.to_string());
            }
            return Err(error.into());
        }
        self.manage_connections();
        self.look_for_engines();
        Ok(())
    }

    /// Whether a card that was reset and does not come up for that reason has lost its image: the card shows it, or
    /// each vFPGA is known to need another. Other causes may be gone at the next reset.
    fn has_lost_image(&self, why: &DriverError) -> bool {
        matches!(why, DriverError::BringUp { .. } | DriverError::Dead { .. })
            && self.is_without_image()
    }

    /// Whether a card that does not come up wants an image.
    fn is_without_image(&self) -> bool {
        let Device { number, card, manifest, .. } = &self.device;
        let needs_all = manifest
            .regions
            .is_some_and(|count| (0..count).all(|vfpga| self.record.vfpgas.contains_key(&vfpga)));
        wants_image(*number, &**card, manifest, needs_all)
    }

    /// Starts the dead engine of an unused window anew, or has it wait until the card has confirmed everything.
    pub fn start_anew(&mut self, index: u8) {
        let unused = |it: Window<'_>| it.engine.death().is_some() && it.users.are_none();
        // One that was reset has lost more than its engine, and one that leaves wants none.
        if !self.window(index).is_ok_and(unused)
            || !self.is_there()
            || self.wanted_back
            || self.is_held(index)
            || self.device.was_reset()
        {
            return;
        }
        match self.device.restart(index) {
            Ok(()) => self.has_started_anew(index),
            Err(error) => {
                log::error!("{error}");
                let in_doubt = self.device.shell.is_in_doubt(index);
                if let Ok(window) = self.window(index) {
                    window.users.waits_for_card = in_doubt;
                }
            }
        }
    }

    /// Records that the engine of a window has started anew, without users.
    pub fn has_started_anew(&mut self, index: u8) {
        let Ok(window) = self.window(index) else { return };
        log::warn!("{}: started anew after its death", window.engine.name());
        self.forget_window(index);
    }

    /// Records that the engine of an unused window was reset: nothing is left of its objects.
    pub fn forget_window(&mut self, index: u8) {
        let Ok(window) = self.window(index) else { return };
        window.users.forget();
        for target in self.xrc.forget_window(index) {
            target.peer.into_iter().for_each(|peer| self.claims.release(peer, target.qp));
        }
    }

    /// Opens its queue pair 1 for the connection manager, if it has one to give.
    pub fn manage_connections(&mut self) {
        if !self.device.windows.iter().any(device::Window::offers_gsi) {
            return;
        }
        match self.device.open_gsi() {
            Ok(gsi) => self.gsi = Some(gsi),
            Err(error) => {
                let name = self.device.name();
                log::error!(
                    "{name}: connections are not managed, for queue pair 1 does not open: {error}"
                );
            }
        }
    }

    /// Its windows.
    pub fn windows(&mut self) -> impl Iterator<Item = Window<'_>> {
        let windows = self.device.windows.iter_mut().zip(&mut self.users);
        windows.map(|(device::Window { index, engine, .. }, users)| Window {
            index: *index,
            engine: &mut **engine,
            users,
        })
    }

    /// A window by its number.
    ///
    /// # Errors
    /// [`Error::NoSuch`] where there is none.
    pub fn window(&mut self, index: u8) -> Result<Window<'_>, Error> {
        self.windows()
            .find(|window| window.index == index)
            .ok_or(Error::NoSuch { object: "window", number: u64::from(index) })
    }

    /// Refuses a card that is known to be unusable.
    ///
    /// # Errors
    /// [`DriverError::Dead`] with the reason.
    pub fn check_up(&self) -> Result<(), DriverError> {
        let failure = || self.failure.as_ref().map(|why| format!("it did not come up: {why}"));
        match self.unusable.clone().or_else(failure) {
            Some(why) => Err(DriverError::Dead { engine: self.device.name(), why }),
            None => Ok(()),
        }
    }

    /// The window a new client goes to: the living one with the most free pages, and if none has one, with
    /// the most places beside them.
    ///
    /// # Errors
    /// [`Error::NoPlaces`] when every place is taken, [`DriverError::Dead`] when no engine lives.
    pub fn emptiest_window(&mut self) -> Result<Window<'_>, Error> {
        self.check_up()?;
        let places = self.users.iter().flat_map(Users::places).sum();
        let card = self.device.number;
        let death = self.device.windows.iter().find_map(|window| {
            let why = window.engine.death()?.to_owned();
            Some(DriverError::Dead { engine: window.engine.name().to_owned(), why })
        });
        let held: Vec<_> =
            self.reloading.iter().chain(self.record.vfpgas.keys()).copied().collect();
        let mut best: Option<Window<'_>> = None;
        let mut living = false;
        let usable = |it: &Window<'_>| it.engine.death().is_none() && !held.contains(&it.index);
        for window in self.windows().filter(usable) {
            living = true;
            let free = window.users.free();
            if free > best.as_ref().map_or([0, 0], |best| best.users.free()) {
                best = Some(window);
            }
        }
        match (best, death) {
            (Some(window), _) => Ok(window),
            (None, Some(death)) if !living => Err(death.into()),
            (None, _) => Err(Error::NoPlaces { card, places }),
        }
    }

    /// Whether it is a card, and not the remains of one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.remains.is_none()
    }

    /// Whether no client has a place on it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.users.iter().all(Users::are_none)
    }

    /// The port's description for clients.
    pub fn port(&mut self) -> PortInfo {
        let attributes = self.device.port();
        PortInfo {
            link_up: attributes.link_up != 0,
            max_mtu: attributes.max_mtu.clamp(SMALLEST_MTU, LARGEST_MTU),
            active_mtu: attributes
                .active_mtu
                .min(self.machine_mtu)
                .clamp(SMALLEST_MTU, LARGEST_MTU),
            mac: self.device.address.mac(),
            gids: self.device.gids.clone(),
            vlans: self.device.vlans.clone(),
            pkeys: PKEYS.to_vec(),
        }
    }

    /// The code of the largest path MTU that the machine's route to a peer carries, for a card on the machine's own network;
    /// `None` where nothing bounds it.
    #[must_use]
    pub fn mtu_to(&self, sgid_index: u8, dgid: [u8; 16]) -> Option<u8> {
        let own = self.device.gids.get(usize::from(sgid_index))?;
        let [from, to] = [*own, dgid].map(|gid| Ipv6Addr::from(gid).to_canonical());
        self.mtu_between(from, to)
    }

    /// The same by the addresses.
    #[must_use]
    pub fn mtu_between(&self, from: IpAddr, to: IpAddr) -> Option<u8> {
        machine::mtu_between(self.on_machine.as_ref()?, from, to)
    }

    /// The card's description for clients.
    pub fn info(&mut self) -> CardInfo {
        CardInfo {
            card: self.device.number,
            name: self.device.name(),
            node_guid: node_guid(self.device.address.mac()),
            firmware: self.device.firmware.clone(),
            board: self.device.identity.board.clone(),
            port: self.port(),
        }
    }
}

/// The users of a card that has just come up: none. Its addresses are divided among those to come.
fn nobody(device: &mut Device) -> Vec<Users> {
    let Device { number, windows, arena, backend, .. } = device;
    // A client that is given the card itself rings by a page of it.
    let relays = backend.grant_kind() == GrantKind::Page;
    let users = windows.iter_mut().map(|window| Users::none(*number, window, relays));
    let users: Vec<_> = users.collect();
    let places = users.iter().flat_map(Users::places).sum::<usize>();
    arena.divide(u64::try_from(places).unwrap_or(u64::MAX), RING_MEMORY_BYTES);
    users
}

/// The places of a window of which nothing is used.
fn places(relays: bool) -> Vec<Page> {
    let last = if relays { u8::MAX } else { DOORBELL_PAGES };
    let place = |number| if number == RELAY_PAGE { Page::Driver } else { Page::Free };
    (1..=last).map(place).collect()
}

/// A card by its number.
///
/// # Errors
/// [`Error::NoSuch`] where there is none.
pub fn find(cards: &mut [Card], number: u32) -> Result<&mut Card, Error> {
    let none = Error::NoSuch { object: "card", number: u64::from(number) };
    cards.iter_mut().find(|card| card.device.number == number).ok_or(none)
}

/// The limits that balboad tells a client: the engine's limits within its quotas.
#[must_use]
pub fn client_limits(engine: &EngineLimits) -> Limits {
    let limit = |resource: Resource| u32::try_from(resource.limit(engine)).unwrap_or(u32::MAX);
    Limits {
        // The driver keeps these capabilities to itself.
        capabilities: engine
            .capabilities
            .difference(Capabilities::GSI | Capabilities::OF_THE_DRIVER)
            .bits(),
        qps: limit(Resource::Qps),
        rqs: limit(Resource::Rqs),
        cqs: limit(Resource::Cqs),
        mrs: limit(Resource::Mrs),
        pds: limit(Resource::Pds),
        ahs: limit(Resource::Ahs),
        groups: engine.groups.into(),
        qps_per_group: engine.qps_per_group.into(),
        memberships: limit(Resource::Memberships),
        mws: limit(Resource::Mws),
        log2_cq_entries: engine.log2_cq_entries,
        log2_sq_blocks: engine.log2_sq_blocks,
        log2_rq_entries: engine.log2_rq_entries,
        max_sge: engine.max_sge,
        max_inline: engine.max_inline,
        max_rd_atomic: engine.max_rd_atomic,
        max_init_rd_atomic: engine.max_init_rd_atomic,
        max_message: engine.max_message,
        max_mr_bytes: Resource::MrBytes.limit(engine),
        max_dm_bytes: engine.largest_dm.min(limit(Resource::DmBytes)),
        comp_vectors: engine.event_rings,
        least_rate: engine.least_rate,
        most_rate: engine.most_rate,
    }
}
