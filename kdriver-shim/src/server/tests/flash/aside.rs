//! Events while the examiner reads the bytes of an image.

use std::sync::mpsc::Sender;

use super::*;

impl World {
    /// Sends a request that is not answered yet.
    fn post(&mut self, peer: &Peer, request: &Request) {
        let message = shim_abi::encode(request);
        fdpass::send(peer.socket.as_fd(), &message, &[], Wait::Never).unwrap();
        self.bench.turn();
        self.is_unanswered(peer);
    }

    fn is_unanswered(&self, peer: &Peer) {
        let received = fdpass::receive(peer.socket.as_fd(), &mut [0; 64], Wait::Never);
        assert!(received.is_err_and(|error| error.would_block()));
    }

    fn answer(&mut self, peer: &Peer) -> Reply {
        shim_abi::decode(&self.bench.answer(peer).0).unwrap()
    }

    /// Makes a tool flash an image whose examination lasts until the sender goes.
    fn held(&mut self, tool: &Peer) -> Sender<()> {
        // The look at images when balboad starts delays no request then.
        self.rest();
        let held = self.bench.server.flasher.examiner().hold();
        self.bring(tool, &image(2));
        self.post(tool, &Request::FlashApply { force: false });
        held
    }

    /// Waits until nothing is looked at any more.
    fn rest(&mut self) {
        while self.bench.server.flasher.examiner().is_busy() {
            assert!(self.bench.server.step(Some(Duration::from_millis(1))).unwrap());
        }
        self.bench.turn();
    }

    /// How many images are kept.
    fn kept(&self) -> usize {
        let files = std::fs::read_dir(self.bench.state_dir().join("images"));
        let names = files.into_iter().flatten().map(|file| file.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".image")).count()
    }

    /// The card is as it came, and nothing was begun with it.
    fn is_untouched(&mut self) {
        self.rest();
        assert_eq!((self.known(), self.kept()), (Some(4), 0));
        assert!(self.record().history.is_empty() && !self.bench.server.flasher.is_flashing());
    }
}

#[test]
fn others_are_served_meanwhile_and_have_the_card_open_then() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let held = world.held(&tool);
    let peer = world.bench.provider();
    let (context, _fds) = world.bench.open(&peer, 0);
    world.bench.cq(&peer, context.context, None);
    world.is_unanswered(&tool);
    drop(held);
    let refusal = world.answer(&tool).unwrap_err();
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    assert!(refusal.reason.contains("1 programs have balboa0 open"), "{}", refusal.reason);
    drop(peer);
    world.bench.turn();
    world.is_untouched();
    assert_eq!(world.flash(&tool, 3), FlashState::Done);
    world.end();
}

#[test]
fn a_tool_that_goes_away_meanwhile_has_asked_for_nothing() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let held = world.held(&tool);
    // Of those that wait for their turn one goes away, too, and the other gets it.
    let [waits, goes] = [(); 2].map(|()| world.tool());
    world.bring(&goes, &image(1));
    world.post(&goes, &Request::FlashApply { force: false });
    drop((tool, goes));
    world.bench.turn();
    world.bring(&waits, &image(3));
    world.post(&waits, &Request::FlashApply { force: false });
    drop(held);
    assert_eq!(world.answer(&waits), Ok(Response::Done));
    assert_eq!(world.outcome(&waits), FlashState::Done);
    assert_eq!((world.known(), world.record().history.len()), (Some(3), 1));
    world.rest();
    let goes = world.tool();
    let held = world.held(&goes);
    drop(goes);
    world.bench.turn();
    drop(held);
    world.rest();
    assert_eq!((world.known(), world.kept()), (Some(3), 2));
    world.end();
}

#[test]
fn a_balboad_that_ends_meanwhile_has_begun_nothing() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    drop(world.held(&tool));
    drop(tool);
    let images = world.bench.state_dir().join("images");
    let root = world.end();
    // It was at its end with the image, and the rest of it goes with the next one.
    assert_eq!(std::fs::read_dir(images).unwrap().count(), 1);
    let mut world = World::start(root);
    assert_eq!(world.record().history.len(), 0);
    world.is_untouched();
    world.end();
}

#[test]
fn the_same_card_is_flashed_by_one_and_looked_at_by_others_when_that_has_begun() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    assert_eq!(world.flash(&tool, 1), FlashState::Done);
    world.rest();
    // It leaves the card when it is told to, and not before.
    let peer = world.bench.provider();
    let (context, _fds) = world.bench.open(&peer, 0);
    let held = world.bench.server.flasher.examiner().hold();
    world.bring(&tool, &image(2));
    world.post(&tool, &Request::FlashApply { force: true });
    let [other, third] = [(); 2].map(|()| world.tool());
    world.bring(&other, &image(3));
    world.post(&other, &Request::FlashApply { force: false });
    world.post(&third, &Request::FlashVerify { card: 0 });
    // One brings an image at a time, also while that waits.
    let late = world.tool();
    let refusal = world.bench.refused(&late, open(&image(3)));
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    drop(held);
    assert_eq!(world.answer(&tool), Ok(Response::Done));
    let [other, third] = [&other, &third].map(|it| world.answer(it).unwrap_err().reason);
    assert!(other.contains("one card is flashed at a time"), "{other}");
    assert!(third.contains("an image is being loaded into it"), "{third}");
    world.bench.ask(&peer, Request::CloseContext { context: context.context });
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known(), Some(2));
    world.end();
}

/// Examining a request costs the control thread a little, so waiting requests are looked at one by one.
#[test]
fn those_who_wait_are_heard_one_behind_the_other() {
    const MANY: usize = 30;
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    assert_eq!(world.flash(&tool, 1), FlashState::Done);
    world.rest();
    let held = world.bench.server.flasher.examiner().hold();
    let peers: Vec<_> = (0..MANY).map(|_| world.tool()).collect();
    peers.iter().for_each(|peer| world.post(peer, &Request::FlashVerify { card: 0 }));
    drop(held);
    let mut waiting = world.bench.server.flasher.examiner().awaited();
    assert_eq!(waiting, MANY - 1);
    while waiting > 0 {
        assert!(world.bench.server.step(Some(Duration::from_millis(1))).unwrap());
        let now = world.bench.server.flasher.examiner().awaited();
        assert!(now == waiting || now == waiting - 1, "{now} of {waiting} wait");
        waiting = now;
    }
    for peer in &peers {
        assert_eq!(world.answer(peer), Ok(Response::Done));
    }
    world.end();
}

#[test]
fn what_a_tool_has_brought_goes_with_it() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    world.bring(&tool, &image(2));
    assert!(world.bench.server.flasher.is_brought());
    drop(tool);
    world.bench.turn();
    assert!(!world.bench.server.flasher.is_brought());
    world.end();
}

#[test]
fn an_image_that_the_card_did_not_take_is_not_kept() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    world.spoil(3, Spoil::WrongBit);
    assert!(matches!(world.flash(&tool, 3), FlashState::Failed(_)));
    world.rest();
    assert_eq!((world.kept(), world.record().wanted().count()), (1, 1), "what it came with");
    world.end();
}

#[test]
fn a_card_that_is_reset_meanwhile_is_flashed_behind_that() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let held = world.held(&tool);
    let other = world.tool();
    world.bench.ask(&other, Request::ResetCard { card: 0 });
    assert_eq!(world.living(), [0, 1, 2, 3]);
    world.is_unanswered(&tool);
    drop(held);
    assert_eq!(world.answer(&tool), Ok(Response::Done));
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known(), Some(2));
    world.end();
}

#[test]
fn a_card_that_the_kernel_wants_back_meanwhile_is_let_go_and_not_flashed() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    let held = world.held(&tool);
    world.bench.server.give_up(0);
    assert!(world.bench.server.cards.is_empty());
    drop(held);
    assert_eq!(world.answer(&tool).unwrap_err().errno, Errno::EINVAL as i32);
    world.rest();
    assert_eq!(world.kept(), 0);
    world.end();
}

#[test]
fn an_image_that_is_verified_is_looked_at_aside_and_so_is_one_that_is_put_back() {
    let mut world = World::start(tempfile::tempdir().unwrap());
    let tool = world.tool();
    for vfpgas in [1, 2] {
        assert_eq!(world.flash(&tool, vfpgas), FlashState::Done);
    }
    world.rest();
    for request in
        [Request::FlashVerify { card: 0 }, Request::FlashRollback { card: 0, force: false }]
    {
        let held = world.bench.server.flasher.examiner().hold();
        world.post(&tool, &request);
        drop((world.bench.provider(), held));
        assert_eq!(world.answer(&tool), Ok(Response::Done));
    }
    assert_eq!(world.outcome(&tool), FlashState::Done);
    assert_eq!(world.known(), Some(1));
    // The stored image is altered.
    let digest = world.record().current.as_ref().unwrap().sha256.clone();
    let file = world.bench.state_dir().join(format!("images/{digest}.image"));
    std::fs::write(file, b"x").unwrap();
    let refusal = world.bench.refused(&tool, Request::FlashVerify { card: 0 });
    assert!(refusal.reason.contains("not what it was"), "{}", refusal.reason);
    world.end();
}
