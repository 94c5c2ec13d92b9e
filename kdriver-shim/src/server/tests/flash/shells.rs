//! Bitstreams of shells, into cards that play FPGAs.

use bitstreams::{model, part};
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell as registers;
use trial::share::share;

use super::*;

/// A bitstream with so many vFPGAs, and its manifest, which may name another number.
fn shell(logic: Logic, vfpgas: usize) -> (Vec<u8>, String) {
    let image = SoftImage::new(vec![logic; vfpgas]).unwrap().filled_to(BYTES).unwrap();
    let bytes = model::make(&image).unwrap();
    let text = manifest(&bytes, logic, vfpgas);
    (bytes, text)
}

fn manifest(bytes: &[u8], logic: Logic, vfpgas: usize) -> String {
    let (length, sha256) = (bytes.len(), Sha256::of(bytes));
    format!(
        "format = 1\nname = \"shell of {vfpgas}\"\nshell-map = \"since-2026\"\nengine = \"{logic}\"\nregions = {vfpgas}\n\
         board = \"model\"\npart = \"balboa\"\nservices = [\"rdma\"]\n\
         [[files]]\nname = \"shell_top.bin\"\nkind = \"shell\"\nlength = {length}\nsha256 = \"{sha256}\"\n"
    )
}

impl World {
    fn fpga(root: tempfile::TempDir) -> Self {
        let card = SoftCard { plays_fpga: true, ..SoftCard::default() };
        Self::of(root, card, Some(&part::MODEL))
    }

    fn bring_shell(&mut self, tool: &Peer, bytes: &[u8], manifest: &str) {
        let (length, sha256) = (bytes.len() as u64, Sha256::of(bytes).0);
        let (name, manifest) = ("shell_top.bin".into(), manifest.to_owned());
        let open = Request::FlashOpen { card: 0, length, sha256, name, manifest };
        self.bench.ask(tool, open);
        for piece in bytes.chunks(300) {
            self.bench.ask(tool, Request::FlashWrite { bytes: piece.to_vec() });
        }
    }

    fn load(&mut self, tool: &Peer, (bytes, manifest): &(Vec<u8>, String)) -> FlashState {
        self.bring_shell(tool, bytes, manifest);
        self.bench.ask(tool, Request::FlashApply { force: false });
        self.outcome(tool)
    }

    /// Why an image is refused before anything happens to the card.
    fn refusal(&mut self, tool: &Peer, bytes: &[u8], manifest: &str) -> String {
        self.bring_shell(tool, bytes, manifest);
        let refusal = self.bench.refused(tool, Request::FlashApply { force: false });
        assert_eq!(self.bench.server.cards[0].device.windows.len(), 4);
        refusal.reason
    }
}

#[test]
fn a_shell_is_loaded_put_back_and_known_again() {
    let mut world = World::fpga(tempfile::tempdir().unwrap());
    let tool = world.tool();
    // The bytes of its first image are unknown, so that it cannot be put back.
    assert_eq!(world.record().current, None);
    world.bench.ask(&tool, Request::FlashVerify { card: 0 });
    let refusal = world.bench.refused(&tool, Request::FlashRollback { card: 0, force: false });
    assert!(refusal.reason.contains("had no other image"), "{}", refusal.reason);
    for it in [(Logic::Vqe, 2), (Logic::Stock, 3), (Logic::Vqe, 3)] {
        let (logic, count) = it;
        assert_eq!(world.load(&tool, &shell(logic, count)), FlashState::Done);
        assert_eq!(world.known_logic(), Some(it));
    }
    world.bench.ask(&tool, Request::FlashRollback { card: 0, force: false });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known_logic(), Some((Logic::Stock, 3)));
    assert!(world.record().history.iter().all(|event| event.image.manifest.is_none()));
    drop(tool);
    let root = world.end();
    let mut world = World::fpga(root);
    assert_eq!(world.known_logic(), Some((Logic::Stock, 3)));
    let tool = world.tool();
    world.bench.ask(&tool, Request::FlashRollback { card: 0, force: false });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known_logic(), Some((Logic::Vqe, 3)));
    drop(tool);
    // A card with another part in its slot is not that of the record.
    let root = world.end();
    let card = SoftCard { plays_fpga: true, ..SoftCard::default() };
    let mut world = World::of(root, card, part::of_number("xcu55c"));
    assert_eq!(world.known(), None);
    world.end();
}

/// An FPGA that refuses a bitstream comes up with the shell of before, and all the registers are as behind one that it took.
#[test]
fn a_shell_that_says_what_was_there_before_is_not_seen_to_be_there() {
    let mut world = World::fpga(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let unseen = |world: &World| {
        let last = world.record().history.last().unwrap();
        assert_eq!((last.unseen, last.failed.is_none()), (world.record().unseen, true));
        last.unseen
    };
    let build = |comment: &str| {
        let (bytes, text) = shell(Logic::Vqe, 4);
        (bytes, format!("# {comment}\n{text}"))
    };
    assert_eq!(world.load(&tool, &build("a")), FlashState::Unseen);
    assert!(unseen(&world));
    drop(tool);
    let mut world = World::fpga(world.end());
    assert!(world.record().unseen, "the next balboad knows it");
    let tool = world.tool();
    assert_eq!(world.load(&tool, &shell(Logic::Vqe, 3)), FlashState::Done);
    assert!(!unseen(&world));
    // After a failed load the image is the one before, or the failed one: both would describe themselves otherwise.
    for next in [3, 1, 2] {
        let (bytes, _) = shell(Logic::Vqe, 1);
        let text = manifest(&bytes, Logic::Vqe, 4);
        assert!(matches!(world.load(&tool, &(bytes, text)), FlashState::Failed(_)));
        assert_eq!(world.load(&tool, &shell(Logic::Vqe, next)), FlashState::Unseen);
        assert!(unseen(&world));
    }
    assert_eq!(world.load(&tool, &shell(Logic::Vqe, 4)), FlashState::Done);
    assert!(!unseen(&world));
    drop(tool);
    world.end();
}

#[test]
fn what_is_not_for_the_card_is_refused_before_anything_happens_to_it() {
    let (bytes, text) = shell(Logic::Vqe, 2);
    let mut world = World::fpga(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let soft = image(2);
    for (bytes, text, why) in [
        (&bytes, String::new(), "say --manifest FILE"),
        (&bytes, "format = 1".into(), "its manifest: "),
        (&bytes, shell(Logic::Vqe, 3).1, "is no shell of the manifest"),
        (
            &bytes,
            text.replace("\"balboa\"", "\"xcu55c-x\"").replace("model", "u55c"),
            "is xcu55c's",
        ),
        (&bytes, text.replace("kind = \"shell\"", "kind = \"full\""), "is no shell of"),
        (&bytes, text.replace("rdma", "tcp"), "no service rdma"),
        (&soft, manifest(&soft, Logic::Vqe, 2), "software cards"),
    ] {
        let told = world.refusal(&tool, bytes, &text);
        assert!(told.contains(why), "{why}: {told}");
    }
    let (length, sha256, name) = (9, [0; 32], String::new());
    let manifest = "#".repeat(shim_abi::MAX_MANIFEST + 1);
    let open = Request::FlashOpen { card: 0, length, sha256, name, manifest };
    assert!(world.bench.refused(&tool, open).reason.contains("a manifest has"));
    drop(tool);
    let root = world.end();
    // No manifest names its part.
    let card = SoftCard { plays_fpga: true, ..SoftCard::default() };
    let mut world = World::of(root, card, None);
    let tool = world.tool();
    let told = world.refusal(&tool, &bytes, &text);
    assert!(told.contains("start balboad with --manifest CARD=FILE"), "{told}");
    drop(tool);
    world.end();
    // A software card's is no card for a bitstream.
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let told = world.refusal(&tool, &bytes, &text);
    assert!(told.contains("it is a partial bitstream, and the card is a software card"), "{told}");
    drop(tool);
    world.end();
}

#[test]
fn a_shell_that_is_another_than_its_manifest_says_is_no_success_and_the_next_one_mends_it() {
    let (bytes, _) = shell(Logic::Vqe, 2);
    let mut spoilt = bytes.clone();
    let frames = bytes.windows(8).position(|it| it == b"\x89balboa\n").unwrap();
    spoilt[frames + 60] ^= 1;
    let good = |logic, count| manifest(&bytes, logic, count);
    for wrong in [
        (bytes.clone(), good(Logic::Vqe, 3)),
        (bytes.clone(), good(Logic::Stock, 2)),
        (bytes.clone(), format!("shell-probe = 7\n{}", good(Logic::Vqe, 2))),
        (spoilt.clone(), manifest(&spoilt, Logic::Vqe, 2)),
    ] {
        let mut world = World::fpga(tempfile::tempdir().unwrap());
        let tool = world.tool();
        match world.load(&tool, &wrong) {
            FlashState::Failed(why) => assert!(why.contains("needs to be flashed again"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(world.known(), None);
        drop(tool);
        let mut world = World::fpga(world.end());
        assert_eq!(world.known(), None);
        let tool = world.tool();
        // This balboad does not know its former image.
        assert_eq!(world.load(&tool, &shell(Logic::Vqe, 1)), FlashState::Unseen);
        assert_eq!(world.known(), Some(1));
        drop(tool);
        world.end();
    }
}

#[test]
fn whatever_happens_at_whichever_chunk_it_is_the_new_shell_or_is_told_to_need_one() {
    let good = shell(Logic::Vqe, 2);
    let chunks = u32::try_from(good.0.len().div_ceil(CHUNK)).unwrap();
    for chunk in (0..chunks).step_by(share()) {
        for how in [Spoil::PowerLost, Spoil::WrongBit, Spoil::Stall, Spoil::NoEnd] {
            let mut world = World::fpga(tempfile::tempdir().unwrap());
            let tool = world.tool();
            world.spoil(chunk, how);
            let outcome = world.load(&tool, &good);
            match &outcome {
                FlashState::Failed(why) => assert!(why.contains("again: "), "{how:?}: {why}"),
                // A bit before the first packet, or behind the last one, changes nothing.
                FlashState::Done => assert_eq!(how, Spoil::WrongBit, "at {chunk}"),
                other => panic!("{other:?}"),
            }
            let known = world.known();
            assert_eq!(known, (outcome == FlashState::Done).then_some(2), "{how:?} at {chunk}");
            let ends = if known.is_some() { FlashState::Done } else { FlashState::Unseen };
            assert_eq!(world.load(&tool, &shell(Logic::Vqe, 1)), ends, "{how:?} at {chunk}");
            assert_eq!(world.known(), Some(1), "{how:?} at {chunk}");
            drop(tool);
            world.end();
        }
    }
}

#[test]
fn a_balboad_that_dies_on_the_way_leaves_a_card_that_says_so_or_is_done() {
    let (bytes, text) = shell(Logic::Vqe, 2);
    for steps in (0..40).step_by(share()) {
        let mut world = World::fpga(tempfile::tempdir().unwrap());
        let tool = world.tool();
        world.bring_shell(&tool, &bytes, &text);
        world.begin(&tool, &Request::FlashApply { force: false }, steps);
        drop(tool);
        let mut world = World::fpga(world.end());
        // It has its first image if no load had begun.
        if !world.record().history.is_empty() {
            let known = world.known();
            assert!(matches!(known, None | Some(2)), "{steps}: {known:?}");
        }
        let tool = world.tool();
        let known = world.bench.server.cards[0].device.said.is_some();
        let ends = if known { FlashState::Done } else { FlashState::Unseen };
        assert_eq!(world.load(&tool, &shell(Logic::Vqe, 1)), ends, "{steps}");
        drop(tool);
        world.end();
    }
}

/// A card's own description counts more than a record of another card, or one of which a part is gone.
#[test]
fn an_fpga_that_works_is_brought_up_whatever_became_of_its_record() {
    let works = |world: &World, vfpgas: usize| {
        let card = &world.bench.server.cards[0];
        card.unusable.is_none() && card.device.windows.len() == vfpgas
    };
    // A software card was in its slot.
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    assert_eq!(world.flash(&tool, 2), FlashState::Done);
    drop(tool);
    let mut world = World::fpga(world.end());
    assert!(works(&world, 4) && world.record().current.is_none());
    let tool = world.tool();
    assert_eq!(world.load(&tool, &shell(Logic::Vqe, 2)), FlashState::Done);
    drop(tool);
    // The bytes of its image are gone; the record has its manifest.
    let root = world.end();
    let sha256 = Sha256::of(&shell(Logic::Vqe, 2).0);
    std::fs::remove_file(root.path().join(format!("images/{sha256}.image"))).unwrap();
    let has = |vfpgas| SoftCard { plays_fpga: true, vfpgas, ..SoftCard::default() };
    let mut world = World::of(root, has(Some(2)), Some(&part::MODEL));
    assert_eq!(world.known(), Some(2));
    let root = world.end();
    // Where it holds something else, that is seen.
    let mut world = World::of(root, has(Some(3)), Some(&part::MODEL));
    assert_eq!(world.known(), None);
    let root = world.end();
    std::fs::write(root.path().join("images/soft:00:00.0.json"), "{").unwrap();
    let mut world = World::fpga(root);
    assert!(works(&world, 4));
    let tool = world.tool();
    assert_eq!(world.load(&tool, &shell(Logic::Vqe, 2)), FlashState::Done);
    drop(tool);
    world.end();
}

/// Its programs are told before the card is given anything, and those of other cards never.
#[test]
fn a_shell_is_loaded_under_programs_only_where_that_is_asked_for_and_they_are_told_first() {
    let card = SoftCard { plays_fpga: true, ..SoftCard::default() };
    let root = tempfile::tempdir().unwrap();
    let given = |_, manifest| Manifest { part: Some(&part::MODEL), ..manifest };
    let (mut bench, runtime, mut cards) = Bench::cards_in(root, vec![card; 2], given);
    *bench.server.flasher.pace() = Pace { chunk: CHUNK, limit: PATIENT };
    let mut world = World { bench, runtime, card: cards.remove(0) };
    let tool = world.tool();
    let peers = [(); 2].map(|()| world.bench.provider());
    let [(context, fds), (other, others)] =
        [0, 1].map(|it| world.bench.open(&peers[it], it as u32));
    let (cqn, _) = world.bench.cq(&peers[1], other.context, None);
    let (bytes, text) = shell(Logic::Vqe, 2);
    let why = world.refusal(&tool, &bytes, &text);
    assert!(why.contains("1 programs have balboa0 open"), "{why}");
    assert!(records(&fds[0]).is_empty() && world.record().history.is_empty());
    world.bring_shell(&tool, &bytes, &text);
    world.bench.ask(&tool, Request::FlashApply { force: true });
    assert_eq!(records(&fds[0]).len(), 1, "it is told that the device is gone");
    let state = world.bench.ask(&tool, Request::FlashState { card: 0 }).0;
    assert_eq!(state, Response::Flash(FlashState::Leaving), "and the card was given nothing yet");
    world.bench.ask(&peers[0], Request::CloseContext { context: context.context });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known_logic(), Some((Logic::Vqe, 2)));
    assert!(records(&others[0]).is_empty());
    world.bench.ask(&peers[1], Request::DestroyCq { cqn });
    let (again, _fds) = world.bench.open(&peers[0], 0);
    world.bench.cq(&peers[0], again.context, None);
    drop((peers, cards));
    world.end();
}

/// A card whose shell's registers show values that a test sets.
fn lying() -> (Bench, Peer) {
    let mut bench = Bench::new(1, 2);
    bench.server.cards[0].device.manifest.part = Some(&part::MODEL);
    let tool = bench.tool();
    let (bytes, manifest) = shell(Logic::Vqe, 1);
    let (length, sha256) = (bytes.len() as u64, Sha256::of(&bytes).0);
    let name = "shell_top.bin".into();
    bench.ask(&tool, Request::FlashOpen { card: 0, length, sha256, name, manifest });
    bench.ask(&tool, Request::FlashWrite { bytes });
    (bench, tool)
}

#[test]
fn whether_a_shell_can_be_exchanged_is_asked_of_one_that_is_there_alone() {
    for needs in [None, Some("balboad ended while the image was on its way".to_owned())] {
        let (mut bench, tool) = lying();
        bench.cards[0].set(Bar::Shell, registers::SHELL_PBLOCK, 0);
        let card = &mut bench.server.cards[0];
        card.record.needs.clone_from(&needs);
        card.tell_need();
        let (answer, _) = bench.try_ask(&tool, &Request::FlashApply { force: false });
        match answer {
            Ok(_) => assert!(needs.is_some()),
            Err(refusal) => {
                assert!(needs.is_none() && refusal.reason.contains("reconfiguration of the shell"));
            }
        }
    }
}

#[test]
fn a_card_that_cannot_be_reset_has_lost_nothing() {
    let (mut bench, tool) = lying();
    bench.cards[0].refuse_resets();
    let living = |bench: &mut Bench| {
        let windows = bench.server.cards[0].windows();
        windows.filter(|window| window.engine.death().is_none()).count()
    };
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let refusal = bench.refused(&tool, Request::FlashApply { force: true });
    assert!(refusal.reason.contains("cannot be reset"), "{}", refusal.reason);
    // The engine that a program has starts behind that, and the other at once.
    assert_eq!(living(&mut bench), 1);
    bench.ask(&peer, Request::CloseContext { context: context.context });
    let refusal = bench.refused(&tool, Request::ResetCard { card: 0 });
    assert!(refusal.reason.contains("cannot be reset"), "{}", refusal.reason);
    assert_eq!(living(&mut bench), 2);
    let card = &bench.server.cards[0];
    assert!(card.unusable.is_none() && card.record.needs.is_none());
    assert_eq!(card.record.history.len(), 1);
}
