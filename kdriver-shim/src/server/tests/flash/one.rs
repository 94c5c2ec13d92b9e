//! Images of one vFPGA alone, which leave the others to their programs.

use trial::share::share;

use super::*;

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
    // A vFPGA without programs is flashed without a word to any program.
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
    // It is no image to go back to, and the next balboad has the card.
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
        self.bench.server.flasher.pace().limit = Duration::from_secs(3600);
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
        // The part of the image that it took is gone, and so is the image before.
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
    assert!(world.bench.server.cards.is_empty() && !world.bench.server.flasher.is_flashing());
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
    world.bench.server.flasher.pace().chunk = 49;
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
    for steps in (0..30).step_by(share()) {
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
