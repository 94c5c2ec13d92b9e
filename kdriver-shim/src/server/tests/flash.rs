//! Images that a tool has loaded into cards, and the record of a card when a process dies meanwhile.

use bitstreams::Manifest;
use bitstreams::digest::Sha256;
use bitstreams::part::Part;
use bitstreams::soft::{Logic, SoftImage};
use card_driver::loading::Pace;
use card_driver::soft::{SoftBackend, SoftCard};
use nix::errno::Errno;
use psp::{Peer as Trusted, Secret, Version};
use shim_abi::{FlashState, MAX_IMAGE};
use softcard::{Protection, Runtime, Spoil};

use super::bench::Peer;
use super::*;
use crate::flasher::UPLOAD_PATIENCE;
use crate::images::record::Record;

mod aside;
mod one;
mod rounds;
mod shells;

/// Bytes of a chunk, and of an image: so it has as many chunks as real ones.
const CHUNK: usize = 100;
const BYTES: u32 = 1000;

fn image(vfpgas: usize) -> Vec<u8> {
    image_of(Logic::Vqe, vfpgas)
}

fn image_of(logic: Logic, vfpgas: usize) -> Vec<u8> {
    let image = SoftImage::new(vec![logic; vfpgas]).unwrap();
    image.filled_to(BYTES).unwrap().to_bytes()
}

/// How long a card may take for a chunk where it takes it in the end, however busy the machine is; and where it does not.
const PATIENT: Duration = Duration::from_secs(60);
const IMPATIENT: Duration = Duration::from_millis(500);

/// A balboad with one software card, which may die and be started again.
struct World {
    bench: Bench,
    runtime: Runtime,
    card: Arc<SoftBackend>,
}

impl World {
    fn start(root: tempfile::TempDir) -> Self {
        Self::of(root, SoftCard::default(), None)
    }

    fn of(root: tempfile::TempDir, card: SoftCard, part: Option<&'static Part>) -> Self {
        Self::given(root, card, |manifest| Manifest { part, ..manifest })
    }

    fn given(
        root: tempfile::TempDir,
        card: SoftCard,
        given: impl Fn(Manifest) -> Manifest,
    ) -> Self {
        let given = |_, manifest| given(manifest);
        let (mut bench, runtime, mut cards) = Bench::cards_in(root, vec![card], given);
        *bench.server.flasher.pace() = Pace { chunk: CHUNK, limit: PATIENT };
        Self { bench, runtime, card: cards.remove(0) }
    }

    fn end(self) -> tempfile::TempDir {
        let Self { bench, runtime, card } = self;
        let root = bench.die();
        drop(card);
        runtime.shutdown();
        root
    }

    fn tool(&mut self) -> Peer {
        self.bench.tool()
    }

    fn bring(&mut self, tool: &Peer, bytes: &[u8]) {
        self.bench.ask(tool, open(bytes));
        for piece in bytes.chunks(300) {
            self.bench.ask(tool, Request::FlashWrite { bytes: piece.to_vec() });
        }
    }

    /// Spoils the card's next reconfiguration at a chunk, which it may never take: the wait for it is short.
    fn spoil(&mut self, chunk: u32, how: Spoil) {
        self.bench.server.flasher.pace().limit = IMPATIENT;
        self.card.spoil_reconfiguration(chunk, how);
    }

    /// Waits for the end of the flashing; later ones wait as long as they have to.
    fn outcome(&mut self, tool: &Peer) -> FlashState {
        loop {
            match self.bench.ask(tool, Request::FlashState { card: 0 }).0 {
                Response::Flash(FlashState::Leaving | FlashState::Loading { .. }) => {}
                Response::Flash(state) => {
                    self.bench.server.flasher.pace().limit = PATIENT;
                    return state;
                }
                other => panic!("{other:?}"),
            }
            assert!(self.bench.server.step(Some(Duration::from_millis(1))).unwrap());
        }
    }

    fn flash(&mut self, tool: &Peer, vfpgas: usize) -> FlashState {
        self.flash_with(tool, &image(vfpgas))
    }

    fn flash_with(&mut self, tool: &Peer, image: &[u8]) -> FlashState {
        self.bring(tool, image);
        self.bench.ask(tool, Request::FlashApply { force: false });
        self.outcome(tool)
    }

    /// Makes a request, and goes on for so many steps, in the middle of which it may be left. The first of them has the
    /// examiner look at the image, and the second is the end of that.
    fn begin(&mut self, tool: &Peer, request: &Request, steps: u64) {
        let message = shim_abi::encode(request);
        fdpass::send(tool.socket.as_fd(), &message, &[], Wait::Never).unwrap();
        for step in 0..steps {
            assert!(self.bench.server.step(Some(Duration::ZERO)).unwrap());
            while step > 0 && self.bench.server.flasher.examiner().is_busy() {
                assert!(self.bench.server.step(Some(Duration::from_millis(1))).unwrap());
            }
        }
    }

    fn record(&self) -> &Record {
        &self.bench.server.cards[0].record
    }

    /// How many engines it has, as it says itself: `None` where it says that it needs to be flashed again.
    fn known(&mut self) -> Option<usize> {
        self.known_logic().map(|(_, count)| count)
    }

    /// The same, with the logic in its vFPGAs.
    fn known_logic(&mut self) -> Option<(Logic, usize)> {
        let tool = self.tool();
        let verified = self.bench.try_ask(&tool, &Request::FlashVerify { card: 0 }).0;
        let card = &self.bench.server.cards[0];
        match verified {
            Ok(Response::Done) => {
                assert!(card.unusable.is_none() && card.record.needs.is_none());
                let logic = &card.record.current.as_ref().unwrap().logic;
                assert_eq!(logic.len(), card.device.windows.len());
                let first: Logic = logic[0].parse().unwrap();
                // For one as published balboad hosts the engine.
                assert_eq!(card.device.is_hosted(), first == Logic::Stock);
                Some((first, logic.len()))
            }
            Err(refusal) => {
                let why = refusal.reason;
                assert!(why.contains("needs to be flashed again"), "{why}");
                assert!(card.device.is_dead() && card.record.current.is_none());
                let (context, _) = self.bench.try_ask(&tool, &Request::OpenContext { card: 0 });
                assert!(context.is_err(), "it can be opened");
                None
            }
            other => panic!("{other:?}"),
        }
    }
}

fn open(bytes: &[u8]) -> Request {
    let (length, sha256) = (bytes.len() as u64, Sha256::of(bytes).0);
    Request::FlashOpen { card: 0, length, sha256, name: "a.soft".into(), manifest: String::new() }
}

#[test]
fn a_tool_flashes_a_card_and_puts_back_what_it_had_and_a_new_balboad_knows_it() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    assert_eq!(world.outcome(&tool), FlashState::Idle);
    let refusal = world.bench.refused(&tool, Request::FlashRollback { card: 0, force: false });
    assert!(refusal.reason.contains("no other image"), "{}", refusal.reason);
    assert_eq!(world.known(), Some(4));
    assert_eq!(world.flash(&tool, 2), FlashState::Done);
    assert_eq!(world.known(), Some(2));
    // The peer has the card by a context that it opens now.
    let peer = world.bench.provider();
    let (context, _fds) = world.bench.open(&peer, 0);
    let (cqn, _) = world.bench.cq(&peer, context.context, None);
    world.bench.ask(&peer, Request::DestroyCq { cqn });
    drop(peer);
    world.bench.turn();
    assert_eq!(world.flash(&tool, 1), FlashState::Done);
    world.bench.ask(&tool, Request::FlashRollback { card: 0, force: false });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    let history = world.record().history.len();
    let mut world = World::start(world.end());
    assert_eq!((world.known(), world.record().history.len()), (Some(2), history));
    let tool = world.tool();
    world.bench.ask(&tool, Request::FlashRollback { card: 0, force: false });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known(), Some(1));
    world.end();
}

#[test]
fn programs_are_told_first_and_disconnected_only_where_that_is_asked_for() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let peer = world.bench.provider();
    let (context, fds) = world.bench.open(&peer, 0);
    for request in [
        open(&image(2)),
        Request::FlashWrite { bytes: vec![0] },
        Request::FlashApply { force: true },
        Request::FlashRollback { card: 0, force: true },
        Request::FlashState { card: 0 },
        Request::FlashVerify { card: 0 },
    ] {
        assert_eq!(world.bench.refused(&peer, request).errno, Errno::EPERM as i32);
    }
    world.bring(&tool, &image(2));
    let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    assert!(refusal.reason.contains("1 programs have balboa0 open"), "{}", refusal.reason);
    assert!(records(&fds[0]).is_empty(), "nobody was told anything");
    assert_eq!(world.known(), Some(4));

    world.bring(&tool, &image(2));
    world.bench.ask(&tool, Request::FlashApply { force: true });
    assert_eq!(records(&fds[0]).len(), 1);
    let state = world.bench.ask(&tool, Request::FlashState { card: 0 }).0;
    assert_eq!(state, Response::Flash(FlashState::Leaving));
    let refusal = world.bench.refused(&tool, Request::ResetCard { card: 0 });
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    world.bring(&tool, &image(1));
    let refusal = world.bench.refused(&tool, Request::FlashApply { force: true });
    assert!(refusal.reason.contains("one card is flashed at a time"), "{}", refusal.reason);
    world.bench.ask(&peer, Request::CloseContext { context: context.context });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known(), Some(2));
    // It is the same program's again.
    let (_, fds) = world.bench.open(&peer, 0);
    world.bring(&tool, &image(3));
    world.bench.ask(&tool, Request::FlashApply { force: true });
    // One that keeps it open is ended.
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!((world.known(), records(&fds[0]).len()), (Some(3), 1));
    drop(peer);
    world.end();
}

#[test]
fn a_card_becomes_one_as_published_under_a_program_and_back() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let published = image_of(Logic::Stock, 2);
    for (image, has) in [(&published, (Logic::Stock, 2)), (&image(3), (Logic::Vqe, 3))] {
        let peer = world.bench.provider();
        let (context, fds) = world.bench.open(&peer, 0);
        let (cqn, _) = world.bench.cq(&peer, context.context, None);
        let pdn = world.bench.pd(&peer, context.context);
        world.bench.qp(&peer, pdn, cqn);
        world.bring(&tool, image);
        let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
        assert_eq!(refusal.errno, Errno::EBUSY as i32);
        world.bring(&tool, image);
        world.bench.ask(&tool, Request::FlashApply { force: true });
        assert_eq!(records(&fds[0]).len(), 1, "it is told that the device is gone");
        let state = world.bench.ask(&tool, Request::FlashState { card: 0 }).0;
        assert_eq!(state, Response::Flash(FlashState::Leaving));
        // It dies of it, with all that it has.
        drop(peer);
        assert_eq!(world.outcome(&tool), FlashState::Done);
        assert_eq!(world.known_logic(), Some(has));
    }
    world.bench.ask(&tool, Request::FlashRollback { card: 0, force: false });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    let mut world = World::start(world.end());
    assert_eq!(world.known_logic(), Some((Logic::Stock, 2)));
    // A running balboad does not learn the ends of tunnels anew.
    let tool = world.tool();
    world.bench.server.cards[0].device.options.peers = [([10, 0, 0, 2].into(), [7; 16])].into();
    world.bring(&tool, &image(2));
    let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
    assert!(refusal.reason.contains("start balboad without --tunnel"), "{}", refusal.reason);
    assert_eq!(world.flash_with(&tool, &image_of(Logic::Stock, 1)), FlashState::Done);
    assert_eq!(world.known_logic(), Some((Logic::Stock, 1)));
    world.end();
}

#[test]
fn a_card_that_seals_is_not_flashed_with_the_published_image_that_seals_nothing() {
    let peer = Trusted { addresses: vec![[10, 77, 0, 2].into()], secret: Secret::new([7; 32]) };
    let protection = Protection { version: Version::AesGcm128, port: 1000, peers: vec![peer] };
    let sealing = SoftCard { protection: Some(protection), ..SoftCard::default() };
    // It had the published image once, before it was to seal.
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    assert_eq!(world.flash_with(&tool, &image_of(Logic::Stock, 1)), FlashState::Done);
    assert_eq!(world.flash(&tool, 3), FlashState::Done);
    let mut world = World::of(world.end(), sealing, None);
    let tool = world.tool();
    world.bring(&tool, &image_of(Logic::Stock, 2));
    let apply = Request::FlashApply { force: true };
    for request in [apply, Request::FlashRollback { card: 0, force: true }] {
        let refusal = world.bench.refused(&tool, request);
        assert!(refusal.reason.contains("start balboad without --psp-peers"), "{}", refusal.reason);
        assert_eq!(world.known(), Some(3));
    }
    assert_eq!(world.flash(&tool, 2), FlashState::Done);
    assert_eq!(world.known(), Some(2));
    world.end();
}

#[test]
fn what_is_no_image_for_the_card_is_refused_and_the_card_left_alone() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let good = image(2);
    let mut spoilt = good.clone();
    spoilt[60] ^= 1;
    let partial: Vec<u8> = [0xaa99_5566u32, 0x3001_8001, 0x14b7_d093, 0x3000_8001, 13]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    for (bytes, why) in [
        (good[..999].to_vec(), "it is truncated"),
        (spoilt, "its SHA-256 is"),
        (partial, "and the card is a software card"),
        (image(5), "has room for 4"),
    ] {
        world.bring(&tool, &bytes);
        let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
        assert!(refusal.reason.contains(why), "{}", refusal.reason);
        assert_eq!(world.known(), Some(4));
    }
    assert!(world.record().history.is_empty(), "nothing was done to the card");
    // The image is the announced one, or none.
    world.bench.ask(&tool, open(&good));
    world.bench.ask(&tool, Request::FlashWrite { bytes: image(3) });
    let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
    assert!(refusal.reason.contains("and "), "{}", refusal.reason);
    world.bench.ask(&tool, open(&good));
    world.bench.ask(&tool, Request::FlashWrite { bytes: good[..500].to_vec() });
    let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
    assert!(refusal.reason.contains("500 bytes came of an image of 1000"), "{}", refusal.reason);
    world.bench.ask(&tool, open(&good));
    world.bench.ask(&tool, Request::FlashWrite { bytes: good.clone() });
    let refusal = world.bench.refused(&tool, Request::FlashWrite { bytes: vec![0] });
    assert!(refusal.reason.contains("1001 bytes came"), "{}", refusal.reason);
    let announce = |length| Request::FlashOpen {
        card: 0,
        length,
        sha256: [0; 32],
        name: String::new(),
        manifest: String::new(),
    };
    for request in [
        Request::FlashApply { force: false },
        Request::FlashWrite { bytes: vec![0] },
        announce(0),
        announce(MAX_IMAGE + 1),
        Request::FlashState { card: 7 },
        Request::FlashRollback { card: 7, force: false },
    ] {
        assert_eq!(world.bench.refused(&tool, request).errno, Errno::EINVAL as i32);
    }
    // One brings an image at a time, and its end makes room.
    world.bench.ask(&tool, open(&good));
    let other = world.tool();
    assert_eq!(world.bench.refused(&other, open(&good)).errno, Errno::EBUSY as i32);
    // So does its silence, after a while.
    world.bench.server.flasher.age_upload(UPLOAD_PATIENCE);
    world.bench.ask(&other, open(&good));
    let refusal = world.bench.refused(&tool, Request::FlashWrite { bytes: good.clone() });
    assert!(refusal.reason.contains("no image was announced"), "{}", refusal.reason);
    assert_eq!(world.bench.refused(&tool, open(&good)).errno, Errno::EBUSY as i32);
    drop(other);
    world.bench.turn();
    assert_eq!(world.flash(&tool, 2), FlashState::Done);
    world.end();
}

#[test]
fn a_record_or_an_image_that_is_spoilt_is_no_image_that_is_known() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    assert_eq!(world.flash(&tool, 2), FlashState::Done);
    let digest = world.record().current.as_ref().unwrap().sha256.clone();
    let root = world.end();
    let file = root.path().join("images").join(format!("{digest}.image"));
    std::fs::write(&file, b"x").unwrap();
    let mut world = World::start(root);
    assert_eq!(world.known(), None);
    let tool = world.tool();
    world.bench.ask(&tool, Request::FlashRollback { card: 0, force: false });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known(), Some(4));
    let root = world.end();
    std::fs::write(root.path().join("images/soft:00:00.0.json"), "{").unwrap();
    let mut world = World::start(root);
    assert_eq!(world.known(), None);
    let tool = world.tool();
    assert_eq!(world.flash(&tool, 3), FlashState::Done);
    assert_eq!(world.known(), Some(3));
    world.end();
}

/// The image of one vFPGA alone.
fn one(vfpga: u8) -> Vec<u8> {
    SoftImage::of_one(vfpga, Logic::Vqe).unwrap().filled_to(BYTES).unwrap().to_bytes()
}

impl World {
    /// The engines of the card that live.
    fn living(&mut self) -> Vec<u8> {
        let windows = self.bench.server.cards[0].windows();
        let living = windows.filter(|window| window.engine.death().is_none());
        living.map(|window| window.index).collect()
    }
}

#[test]
fn a_card_that_a_reset_did_not_bring_up_has_its_image_still_and_comes_back_by_the_next() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    // One vFPGA needs an image, which is no sign that the card does.
    world.card.spoil_reconfiguration(3, Spoil::WrongBit);
    world.flash_with(&tool, &one(2));
    let record = world.record().clone();
    let has = world.bench.server.cards[0].device.manifest.regions.replace(9);
    let refusal = world.bench.refused(&tool, Request::ResetCard { card: 0 });
    assert!(refusal.reason.contains("it did not come up: "), "{}", refusal.reason);
    let card = &world.bench.server.cards[0];
    assert!(card.device.is_dead() && card.unusable.is_none(), "{:?}", card.unusable);
    assert_eq!(world.record(), &record);
    world.bench.server.cards[0].device.manifest.regions = has;
    // Nor does it come up for clients that end meanwhile: only for a request.
    world.bench.server.tend_cards();
    assert_eq!(world.living(), [] as [u8; 0]);
    world.bench.ask(&tool, Request::ResetCard { card: 0 });
    world.bench.turn();
    assert_eq!((world.living(), world.record()), (vec![0, 1, 3], &record));
    world.end();
}

/// The manifest of a card with other vFPGAs.
fn wrong(manifest: Manifest) -> Manifest {
    Manifest { regions: Some(3), ..manifest }
}

#[test]
fn a_card_that_does_not_come_up_keeps_no_other_from_being_served_and_is_reset() {
    let given = |number, manifest| if number == 0 { wrong(manifest) } else { manifest };
    let cards = vec![SoftCard::default(); 2];
    let (mut bench, runtime, _) = Bench::cards_in(tempfile::tempdir().unwrap(), cards, given);
    let tool = bench.tool();
    let peer = bench.provider();
    let opened = bench.open(&peer, 1);
    for reset in [false, true] {
        if reset {
            let refusal = bench.refused(&tool, Request::ResetCard { card: 0 });
            assert!(refusal.reason.contains("did not come up: "), "{}", refusal.reason);
        }
        let refusal = bench.refused(&peer, Request::OpenContext { card: 0 });
        assert!(refusal.reason.contains("did not come up: "), "{}", refusal.reason);
        let refusal = bench.refused(&tool, Request::FlashVerify { card: 0 });
        assert!(refusal.reason.contains("vFPGAs"), "{}", refusal.reason);
        assert!(bench.server.cards[0].unusable.is_none());
    }
    bench.server.cards[0].device.manifest.regions = Some(4);
    bench.ask(&tool, Request::ResetCard { card: 0 });
    bench.turn();
    let card = &bench.server.cards[0];
    assert_eq!((card.device.windows.len(), card.failure.as_ref()), (4, None));
    let other = bench.provider();
    drop((bench.open(&other, 0), opened));
    drop(bench.die());
    runtime.shutdown();
}

#[test]
fn a_card_that_does_not_come_up_is_flashed() {
    let mut world = World::given(tempfile::tempdir().unwrap(), SoftCard::default(), wrong);
    let tool = world.tool();
    assert!(world.bench.server.cards[0].failure.is_some());
    assert_eq!(world.flash(&tool, 2), FlashState::Done);
    assert_eq!((world.known(), world.bench.server.cards[0].failure.as_ref()), (Some(2), None));
    world.end();
}

#[test]
fn a_card_that_does_not_come_up_and_was_given_nothing_has_its_image_still() {
    let mut world = World::given(tempfile::tempdir().unwrap(), SoftCard::default(), wrong);
    let tool = world.tool();
    world.bench.server.flasher.pace().chunk = 0;
    let FlashState::Failed(why) = world.flash(&tool, 2) else { panic!("it was flashed") };
    assert!(!why.contains("flashed again"), "{why}");
    let card = &world.bench.server.cards[0];
    assert!(card.unusable.is_none() && card.record.needs.is_none(), "{:?}", card.unusable);
    assert!(card.failure.as_ref().is_some_and(|why| why.contains("vFPGAs")), "{:?}", card.failure);
    world.bench.server.cards[0].device.manifest.regions = Some(4);
    world.bench.ask(&tool, Request::ResetCard { card: 0 });
    world.bench.turn();
    assert_eq!(world.living(), [0, 1, 2, 3]);
    world.end();
}
