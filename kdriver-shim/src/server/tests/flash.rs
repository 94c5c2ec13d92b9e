//! Images that a tool has loaded into cards, and what is known of a card whatever dies meanwhile.

use bitstreams::Manifest;
use bitstreams::digest::Sha256;
use bitstreams::part::Part;
use bitstreams::soft::{Logic, SoftImage};
use card_driver::loading::Pace;
use card_driver::soft::{SoftBackend, SoftCard};
use nix::errno::Errno;
use shim_abi::{FlashState, MAX_IMAGE, Role};
use softcard::{Runtime, Spoil};

use super::bench::Peer;
use super::*;
use crate::images::record::Record;

mod aside;
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
        bench.server.pace = Pace { chunk: CHUNK, limit: PATIENT };
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
        let tool = self.bench.connect();
        assert_eq!(self.bench.greet(&tool, Role::Tool), Ok(Response::Done));
        tool
    }

    fn bring(&mut self, tool: &Peer, bytes: &[u8]) {
        self.bench.ask(tool, open(bytes));
        for piece in bytes.chunks(300) {
            self.bench.ask(tool, Request::FlashWrite { bytes: piece.to_vec() });
        }
    }

    /// Has the card spoil the next reconfiguration at a chunk, which it may never take: nobody waits long for that.
    fn spoil(&mut self, chunk: u32, how: Spoil) {
        self.bench.server.pace.limit = IMPATIENT;
        self.card.spoil_reconfiguration(chunk, how);
    }

    /// Waits until what was begun has ended; what is begun then waits as long as it has to.
    fn outcome(&mut self, tool: &Peer) -> FlashState {
        loop {
            match self.bench.ask(tool, Request::FlashState { card: 0 }).0 {
                Response::Flash(FlashState::Leaving | FlashState::Loading { .. }) => {}
                Response::Flash(state) => {
                    self.bench.server.pace.limit = PATIENT;
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

    /// Asks for something, and goes on for so many steps, in the middle of which it may be left. The first of them has the
    /// image looked at aside, and the second is the end of that.
    fn begin(&mut self, tool: &Peer, request: &Request, steps: u64) {
        let message = shim_abi::encode(request);
        fdpass::send(tool.socket.as_fd(), &message, &[], Wait::Never).unwrap();
        for step in 0..steps {
            assert!(self.bench.server.step(Some(Duration::ZERO)).unwrap());
            while step > 0 && self.bench.server.examiner.is_busy() {
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
                assert_eq!(card.device.backend.below().is_some(), first == Logic::Stock);
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
    // Who the ends of tunnels are a running balboad does not learn anew.
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
    // What comes is what was announced, or nothing.
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
    drop(tool);
    world.bench.turn();
    assert_eq!(world.flash(&other, 2), FlashState::Done);
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
    /// Which engines of the card live.
    fn living(&mut self) -> Vec<u8> {
        let windows = self.bench.server.cards[0].windows();
        let living = windows.filter(|window| window.engine.death().is_none());
        living.map(|window| window.index).collect()
    }
}

#[test]
fn one_vfpga_is_flashed_and_the_programs_of_the_others_are_left_alone() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let peers = [(); 2].map(|()| world.bench.provider());
    let opened = [0, 1].map(|it| world.bench.open(&peers[it], 0));
    let [(context, fds), (bystander, others)] = &opened;
    let window = |server: &Server, peer: usize| {
        let mut ids: Vec<_> =
            server.clients.iter().filter(|(_, it)| it.stage == Stage::Provider).collect();
        ids.sort_by_key(|(id, _)| **id);
        ids[peer].1.owned.places[&0].window
    };
    let (mine, theirs) = (window(&world.bench.server, 0), window(&world.bench.server, 1));
    assert_ne!(mine, theirs, "each has a vFPGA of its own");
    let (cqn, _) = world.bench.cq(&peers[1], bystander.context, None);
    world.bring(&tool, &one(mine));
    let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    assert!(refusal.reason.contains(&format!("vFPGA {mine} of balboa0")), "{}", refusal.reason);
    // One that nobody has is flashed without a word to anybody.
    let free = (0..4).find(|vfpga| ![mine, theirs].contains(vfpga)).unwrap();
    assert_eq!(world.flash_with(&tool, &one(free)), FlashState::Done);
    assert!(records(&fds[0]).is_empty() && records(&others[0]).is_empty());
    world.bring(&tool, &one(mine));
    world.bench.ask(&tool, Request::FlashApply { force: true });
    assert_eq!((records(&fds[0]).len(), records(&others[0]).len()), (1, 0));
    // While that one is left, others come to the rest of the card.
    let late = world.bench.provider();
    let (latecomer, _) = world.bench.open(&late, 0);
    assert_ne!(window(&world.bench.server, 2), mine);
    world.bench.ask(&peers[0], Request::CloseContext { context: context.context });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!((world.living(), world.known()), (vec![0, 1, 2, 3], Some(4)));
    world.bench.ask(&peers[1], Request::DestroyCq { cqn });
    world.bench.cq(&late, latecomer.context, None);
    let (again, _) = world.bench.open(&peers[0], 0);
    world.bench.cq(&peers[0], again.context, None);
    // It is not what one would go back to, and the next balboad has the card.
    assert_eq!((world.record().history.len(), world.record().previous.is_none()), (2, true));
    for (image, why) in [
        (one(5), "no engine in vFPGA 5"),
        (SoftImage::of_one(1, Logic::Stock).unwrap().to_bytes(), "wants another network"),
    ] {
        world.bring(&tool, &image);
        let refusal = world.bench.refused(&tool, Request::FlashApply { force: true });
        assert!(refusal.reason.contains(why), "{}", refusal.reason);
    }
    assert!(records(&others[0]).is_empty());
    drop((peers, late));
    world.bench.turn();
    // Queue pair 1 is back with the vFPGA that has it.
    assert_eq!(world.flash_with(&tool, &one(0)), FlashState::Done);
    assert!(world.bench.server.cards[0].gsi.as_ref().unwrap().is_open());
    let mut world = World::start(world.end());
    assert_eq!(world.known(), Some(4));
    world.end();
}

#[test]
fn one_vfpga_that_was_not_flashed_says_so_and_is_mended_by_the_next_image() {
    for how in [Spoil::WrongBit, Spoil::Stall, Spoil::NoEnd, Spoil::PowerLost] {
        let mut world = World::start(tempfile::tempdir().unwrap());
        let tool = world.tool();
        let peer = world.bench.provider();
        let (context, fds) = world.bench.open(&peer, 0);
        world.spoil(3, how);
        let ended = world.flash_with(&tool, &one(3));
        let FlashState::Failed(why) = ended else { panic!("{how:?}: {ended:?}") };
        assert!(why.contains("needs to be flashed again"), "{how:?}: {why}");
        let refusal = world.bench.refused(&tool, Request::FlashVerify { card: 0 });
        assert!(refusal.reason.contains("needs to be flashed again"), "{}", refusal.reason);
        if how == Spoil::PowerLost {
            assert_eq!(records(&fds[0]).len(), 1, "it has lost the card");
            drop(peer);
            assert_eq!(world.known(), None);
        } else {
            assert_eq!((world.living(), records(&fds[0]).len()), (vec![0, 1, 2], 0), "{how:?}");
            assert_eq!(world.record().vfpgas.keys().collect::<Vec<_>>(), [&3]);
            // Whose program ends does not have the engine started anew.
            world.bench.cq(&peer, context.context, None);
            drop(peer);
        }
        match how {
            Spoil::WrongBit | Spoil::NoEnd => {
                assert_eq!(world.flash_with(&tool, &one(3)), FlashState::Done);
                assert_eq!(world.known(), Some(4));
            }
            Spoil::Stall => {
                let again = world.flash_with(&tool, &one(3));
                let FlashState::Failed(why) = again else { panic!("{again:?}") };
                assert!(why.contains("only a reset ends that"), "{why}");
                assert_eq!((world.living(), world.record().vfpgas.len()), (vec![0, 1, 2], 1));
            }
            Spoil::PowerLost => {}
        }
        assert_eq!(world.flash(&tool, 2), FlashState::Done, "{how:?}");
        assert_eq!((world.known(), world.record().vfpgas.len()), (Some(2), 0), "{how:?}");
        world.end();
    }
}

impl World {
    /// Begins to flash vFPGA 1, and stops where the card has been given the chunk of that number and stands still, or where
    /// a program keeps that vFPGA open.
    fn stop_at(&mut self, tool: &Peer, chunk: Option<u32>) {
        self.bench.server.pace.limit = Duration::from_secs(3600);
        self.bring(tool, &one(1));
        if let Some(chunk) = chunk {
            self.card.spoil_reconfiguration(chunk, Spoil::Stall);
        }
        self.bench.ask(tool, Request::FlashApply { force: true });
        let Some(chunk) = chunk else { return };
        let there = u64::from(chunk) * CHUNK as u64;
        loop {
            let state = self.bench.ask(tool, Request::FlashState { card: 0 }).0;
            // One more step gives it the first chunk.
            assert!(self.bench.server.step(Some(Duration::ZERO)).unwrap());
            match state {
                Response::Flash(FlashState::Loading { done, .. }) if done == there => break,
                Response::Flash(FlashState::Leaving | FlashState::Loading { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_card_of_which_one_vfpga_is_loaded_is_reset_by_no_tool_and_otherwise_comes_back_behind_that() {
    for chunk in [None, Some(0), Some(2)] {
        let mut world = World::start(tempfile::tempdir().unwrap());
        let tool = world.tool();
        let peers = [(); 2].map(|()| world.bench.provider());
        let opened = [0, 1].map(|it| world.bench.open(&peers[it], 0));
        let mut peers = Some(peers);
        if chunk.is_some() {
            peers = None;
            world.bench.turn();
        }
        world.stop_at(&tool, chunk);
        let refusal = world.bench.refused(&tool, Request::ResetCard { card: 0 });
        assert_eq!(refusal.errno, Errno::EBUSY as i32, "{chunk:?}");
        assert!(refusal.reason.contains("loaded into vFPGA 1"), "{}", refusal.reason);
        // By the kernel, say.
        world.card.reset().unwrap();
        world.bench.server.cards[0].windows().for_each(|window| window.engine.check());
        assert!(world.bench.server.cards[0].device.is_dead());
        let ended = world.outcome(&tool);
        let FlashState::Failed(why) = ended else { panic!("{chunk:?}: {ended:?}") };
        assert!(why.contains("the card was reset"), "{chunk:?}: {why}");
        drop((peers, opened));
        world.bench.turn();
        assert!(world.bench.server.cards[0].gsi.as_ref().unwrap().is_open());
        // What it took of the image is gone, and what was there before.
        let there = if chunk == Some(2) { vec![0, 2, 3] } else { vec![0, 1, 2, 3] };
        assert_eq!(world.living(), there, "{chunk:?}");
        assert_eq!(world.record().vfpgas.len(), 4 - there.len(), "{chunk:?}");
        let peers = [(); 4].map(|()| world.bench.provider());
        let opened = [0, 1, 2, 3].map(|it| world.bench.open(&peers[it], 0));
        for (peer, (context, _)) in peers.iter().zip(&opened) {
            world.bench.cq(peer, context.context, None);
        }
        drop((peers, opened));
        world.bench.turn();
        let next = if chunk == Some(2) { image(4) } else { one(1) };
        assert_eq!(world.flash_with(&tool, &next), FlashState::Done, "{chunk:?}");
        assert_eq!(world.known(), Some(4), "{chunk:?}");
        world.end();
    }
}

#[test]
fn a_card_that_the_kernel_wants_back_is_let_go_behind_what_one_vfpga_is_given() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    world.stop_at(&tool, Some(2));
    world.bench.server.give_up(0);
    assert_eq!(world.bench.server.cards.len(), 1, "it reaches for the chunk still");
    assert!(world.bench.server.step(Some(Duration::ZERO)).unwrap());
    assert!(world.bench.server.cards.is_empty() && world.bench.server.flash.is_none());
    world.end();
    // Where programs have it still nothing of it starts anew before they have left.
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let peers = [(); 2].map(|()| world.bench.provider());
    let opened = [0, 1].map(|it| world.bench.open(&peers[it], 0));
    world.stop_at(&tool, None);
    world.bench.server.give_up(0);
    assert!(matches!(world.outcome(&tool), FlashState::Failed(_)));
    assert!(world.living().is_empty());
    drop((peers, opened));
    world.bench.turn();
    assert!(world.bench.server.cards.is_empty());
    world.end();
}

#[test]
fn what_programs_left_in_a_vfpga_goes_with_its_engine_whatever_comes_of_the_image() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let peers = [(); 2].map(|()| world.bench.provider());
    let opened = [0, 1].map(|it| world.bench.open(&peers[it], 0));
    let (context, _) = &opened[1];
    let pdn = world.bench.pd(&peers[1], context.context);
    let (cqn, _) = world.bench.cq(&peers[1], context.context, None);
    world.bench.qp(&peers[1], pdn, cqn);
    world.bring(&tool, &one(1));
    world.spoil(3, Spoil::WrongBit);
    world.bench.ask(&tool, Request::FlashApply { force: true });
    drop((peers, opened));
    let ended = world.outcome(&tool);
    assert!(matches!(ended, FlashState::Failed(_)), "{ended:?}");
    assert_eq!(world.living(), [0, 2, 3]);
    let users = world.bench.server.cards[0].window(1).unwrap().users;
    assert_eq!(users.free(), users.places());
    world.end();
}

#[test]
fn queue_pair_1_goes_with_the_vfpga_that_has_it_and_comes_back_with_its_next_image() {
    for (how, resets) in [(Spoil::WrongBit, false), (Spoil::WrongBit, true), (Spoil::NoEnd, true)] {
        let mut world = World::start(tempfile::tempdir().unwrap());
        let tool = world.tool();
        world.spoil(3, how);
        let ended = world.flash_with(&tool, &one(0));
        assert!(matches!(ended, FlashState::Failed(_)), "{how:?}: {ended:?}");
        assert_eq!(world.living(), [1, 2, 3], "{how:?}");
        assert!(world.bench.server.cards[0].gsi.is_none(), "{how:?}");
        // That of another vFPGA brings nothing back.
        assert_eq!(world.flash_with(&tool, &one(2)), FlashState::Done);
        assert!(world.bench.server.cards[0].gsi.is_none(), "{how:?}");
        if resets {
            world.bench.ask(&tool, Request::ResetCard { card: 0 });
            world.bench.turn();
        }
        match (how, resets) {
            // balboad drives nothing there any more.
            (Spoil::WrongBit, true) => {
                assert_eq!((world.living(), world.record().vfpgas.len()), (vec![1, 2, 3], 1));
                world.bring(&tool, &one(0));
                let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
                let why = refusal.reason;
                assert!(why.contains("load an image of the whole card"), "{why}");
                assert_eq!(world.flash(&tool, 4), FlashState::Done);
            }
            (Spoil::WrongBit, false) => {
                assert_eq!(world.flash_with(&tool, &one(0)), FlashState::Done);
            }
            // It was there, and its end was not told.
            _ => {}
        }
        assert_eq!((world.living(), world.known()), (vec![0, 1, 2, 3], Some(4)), "{how:?}");
        assert!(world.bench.server.cards[0].gsi.as_ref().unwrap().is_open(), "{how:?}");
        world.end();
    }
}

#[test]
fn a_card_that_is_reset_when_no_vfpga_has_an_image_any_more_needs_one_and_takes_it() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    for vfpga in 0..4 {
        world.card.spoil_reconfiguration(3, Spoil::WrongBit);
        let ended = world.flash_with(&tool, &one(vfpga));
        assert!(matches!(ended, FlashState::Failed(_)), "{vfpga}: {ended:?}");
    }
    assert_eq!((world.living(), world.record().vfpgas.len()), (vec![], 4));
    let refusal = world.bench.refused(&tool, Request::ResetCard { card: 0 });
    assert!(refusal.reason.contains("needs to be flashed again"), "{}", refusal.reason);
    assert!(world.bench.server.cards[0].device.windows.is_empty(), "they had memory of before");
    world.bring(&tool, &one(1));
    let refusal = world.bench.refused(&tool, Request::FlashApply { force: false });
    assert!(refusal.reason.contains("load an image of the whole card"), "{}", refusal.reason);
    assert_eq!(world.known(), None);
    world.bench.ask(&tool, Request::FlashRollback { card: 0, force: false });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!((world.living(), world.known()), (vec![0, 1, 2, 3], Some(4)));
    // A balboad that is started in between knows it from the record.
    for vfpga in 0..4 {
        world.card.spoil_reconfiguration(3, Spoil::WrongBit);
        world.flash_with(&tool, &one(vfpga));
    }
    world.bench.refused(&tool, Request::ResetCard { card: 0 });
    let mut world = World::start(world.end());
    assert_eq!(world.known(), None);
    world.end();
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
    // Nor does it come up for whoever ends meanwhile: only for who asks.
    world.bench.server.tend_cards();
    assert_eq!(world.living(), [] as [u8; 0]);
    world.bench.ask(&tool, Request::ResetCard { card: 0 });
    world.bench.turn();
    assert_eq!((world.living(), world.record()), (vec![0, 1, 3], &record));
    world.end();
}

/// What a card's manifest says that has other vFPGAs.
fn wrong(manifest: Manifest) -> Manifest {
    Manifest { regions: Some(3), ..manifest }
}

#[test]
fn a_card_that_does_not_come_up_keeps_no_other_from_being_served_and_is_reset() {
    let given = |number, manifest| if number == 0 { wrong(manifest) } else { manifest };
    let cards = vec![SoftCard::default(); 2];
    let (mut bench, runtime, _) = Bench::cards_in(tempfile::tempdir().unwrap(), cards, given);
    let tool = bench.connect();
    assert_eq!(bench.greet(&tool, Role::Tool), Ok(Response::Done));
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
    world.bench.server.pace.chunk = 0;
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

#[test]
fn an_engine_of_which_the_record_could_not_be_written_is_given_up() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let peers = [(); 2].map(|()| world.bench.provider());
    let opened = [0, 1].map(|it| world.bench.open(&peers[it], 0));
    world.stop_at(&tool, None);
    let record = world.bench.state_dir().join("images/soft:00:00.0.json");
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    drop((peers, opened));
    let ended = world.outcome(&tool);
    let FlashState::Failed(why) = ended else { panic!("{ended:?}") };
    assert!(why.contains("needs to be flashed again") && why.contains("be written"), "{why}");
    assert_eq!(world.living(), [0, 2, 3]);
    std::fs::remove_dir(&record).unwrap();
    assert_eq!(world.flash_with(&tool, &one(1)), FlashState::Done);
    assert_eq!((world.living(), world.known()), (vec![0, 1, 2, 3], Some(4)));
    world.end();
}

#[test]
fn a_wrong_bit_where_an_image_says_of_which_vfpga_it_is_costs_the_card_its_image_which_is_told() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let peer = world.bench.provider();
    let (_context, fds) = world.bench.open(&peer, 0);
    // The bit that is spoilt is one of the last byte of a chunk.
    world.bench.server.pace.chunk = 49;
    world.spoil(0, Spoil::WrongBit);
    let ended = world.flash_with(&tool, &one(3));
    let FlashState::Failed(why) = ended else { panic!("{ended:?}") };
    assert!(why.contains("holds no image any more"), "{why}");
    assert_eq!(records(&fds[0]).len(), 1, "it has lost the card");
    drop(peer);
    assert_eq!(world.known(), None);
    assert_eq!(world.flash(&tool, 2), FlashState::Done);
    assert_eq!(world.known(), Some(2));
    world.end();
}

#[test]
fn a_balboad_that_dies_while_one_vfpga_is_flashed_has_the_card_again() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    for steps in 0..30 {
        let tool = world.tool();
        world.bring(&tool, &one(1));
        world.begin(&tool, &Request::FlashApply { force: false }, steps);
        drop(tool);
        // A software card of balboad's own comes as its record's whole image again.
        world = World::start(world.end());
        assert_eq!(world.known(), Some(4), "{steps}");
    }
    // One at least is done, however slow the card was.
    let tool = world.tool();
    assert_eq!(world.flash_with(&tool, &one(1)), FlashState::Done);
    let history = &world.record().history;
    let failed = history.iter().filter(|it| it.failed.is_some()).count();
    assert!((1..history.len()).contains(&failed), "{failed} of {}", history.len());
    world.end();
}

/// Draws numbers, always the same ones for a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }
}

/// Rounds of flash and rollback, in each of which the tool, balboad, the card's power or the card itself may fail at
/// any time. Behind each of them the card has the image that it had, the one it was given, or says that it has none.
fn rounds(seed: u64, count: u32) {
    let mut draw = Draw(seed);
    let mut world = World::start(tempfile::tempdir().unwrap());
    let mut has = world.known_logic();
    // How often a round ended with another image, with another engine, with none, and with a balboad that died while an
    // image was on its way.
    let (mut flashed, mut turned, mut lost, mut died) = (0, 0, 0, 0);
    // A card keeps what it is to spoil until it is given an image, which may be rounds later.
    let mut is_spoilt = false;
    for round in 0..count {
        let chunks = u64::from(BYTES) / CHUNK as u64;
        if is_spoilt {
            world.bench.server.pace.limit = IMPATIENT;
        }
        if draw.below(2) == 0 {
            let all = [Spoil::PowerLost, Spoil::WrongBit, Spoil::Stall, Spoil::NoEnd];
            let how = all[draw.below(4) as usize];
            world.spoil(draw.below(chunks) as u32, how);
            is_spoilt = true;
        }
        let tool = world.tool();
        let previous = world.record().previous.as_ref();
        let previous = previous.map(|it| (it.logic[0].parse().unwrap(), it.logic.len()));
        let (wanted, request) = match (draw.below(4), previous) {
            (0, Some(previous)) => {
                (previous, Some(Request::FlashRollback { card: 0, force: false }))
            }
            _ => {
                let wanted = (Logic::ALL[draw.below(2) as usize], 1 + draw.below(4) as usize);
                world.bring(&tool, &image_of(wanted.0, wanted.1));
                (wanted, (draw.below(8) > 0).then_some(Request::FlashApply { force: false }))
            }
        };
        let mut told = None;
        match (draw.below(3), request) {
            (_, None) => drop(tool),
            // The tool dies, and balboad goes on by itself.
            (0, Some(request)) => {
                world.bench.ask(&tool, request);
                drop(tool);
            }
            // balboad dies somewhere on the way.
            (1, Some(request)) => {
                world.begin(&tool, &request, draw.below(3 * chunks));
                drop(tool);
                let before = world.record().writing.is_some();
                world = World::start(world.end());
                (is_spoilt, died) = (false, died + u32::from(before));
            }
            (_, Some(request)) => {
                world.bench.ask(&tool, request);
                told = Some(world.outcome(&tool));
            }
        }
        let tool = world.tool();
        let ended = world.outcome(&tool);
        let now = world.known_logic();
        let at = format!("round {round} of seed {seed}: had {has:?}, wanted {wanted:?}, {ended:?}");
        assert!(now.is_none() || now == has || now == Some(wanted), "{at}: has {now:?}");
        match told {
            Some(FlashState::Done) => assert_eq!(now, Some(wanted), "{at}"),
            Some(FlashState::Failed(_)) => {
                assert!(now.is_none() || now == has, "{at}: has {now:?}")
            }
            _ => {}
        }
        flashed += u32::from(now.is_some() && now != has);
        let engine = |it: Option<(Logic, usize)>| it.map(|(logic, _)| logic);
        turned += u32::from(has.is_some() && now.is_some() && engine(now) != engine(has));
        lost += u32::from(now.is_none());
        has = now;
        // A spoilt card that was not given anything yet.
        world.card.reset().unwrap();
        if has.is_some() {
            world = World::start(world.end());
            is_spoilt = false;
            assert_eq!(world.known_logic(), has, "{at}");
        }
    }
    let counts = format!("{flashed} flashed, {turned} turned, {lost} lost, {died} died");
    assert!(flashed > 0 && lost > 0 && died > 0, "{counts}");
    println!("{count} rounds of seed {seed}: {counts}");
    world.end();
}

/// Rounds of each seed; so many others by the environment variable `FLASH_ROUNDS`.
fn count() -> u32 {
    std::env::var("FLASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25)
}

#[test]
fn a_card_is_never_in_an_unknown_state_whatever_dies() {
    rounds(1, count());
}

#[test]
fn nor_by_other_seeds() {
    rounds(2, count());
    rounds(3, count());
}
