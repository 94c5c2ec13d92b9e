//! A card that was reset is another device at once, and programs' objects of the earlier one reach nothing and delay no
//! one.

use card_driver::device::NUMBERS;

use super::bench::{Peer, leaked, wanted_ah, wanted_qp};
use super::*;
use crate::cards::Page;

/// A program that has an object of each kind on card 0.
struct Keeper {
    peer: Peer,
    context: u32,
    pdn: u32,
    cqn: u32,
    srqn: u32,
    qpn: u32,
    mr: u32,
    ah: u32,
    channel: u32,
    fds: Vec<OwnedFd>,
}

impl Keeper {
    fn new(bench: &mut Bench, memory: &[u8]) -> Self {
        let peer = bench.provider();
        let (info, fds) = bench.open(&peer, 0);
        let context = info.context;
        let pdn = bench.pd(&peer, context);
        let (cqn, _) = bench.cq(&peer, context, None);
        let srqn = bench.srq(&peer, pdn);
        let qpn = bench.qp(&peer, pdn, cqn);
        let (mr, _) = bench.mr(&peer, pdn, memory);
        let Response::Ah { ah, .. } = bench.ask(&peer, wanted_ah(pdn)).0 else { panic!() };
        let made = bench.ask(&peer, Request::CreateChannel { context }).0;
        let Response::Channel { channel } = made else { panic!("{made:?}") };
        Self { peer, context, pdn, cqn, srqn, qpn, mr, ah, channel, fds }
    }

    /// The requests that it may make about its objects, but for ends.
    fn asks(&self) -> Vec<Request> {
        let Self { context, pdn, cqn, srqn, qpn, mr, .. } = *self;
        let address = 0x1000;
        let wanted = Attributes { mask: AttributeMask::STATE, ..Attributes::default() };
        vec![
            Request::QueryPort { context },
            Request::QueryClock { context },
            Request::CreateChannel { context },
            Request::AllocPd { context },
            create_cq(context, 6),
            Request::ResizeCq { cqn, log2_entries: 7 },
            Request::ModerateCq { cqn, count: 1, period: 1 },
            Request::CreateSrq { pdn, log2_entries: 4, log2_stride: 0, cookie: 1 },
            Request::ModifySrq { srqn, limit: 1 },
            Request::QuerySrq { srqn },
            Request::CreateQp(wanted_qp(pdn, cqn)),
            Request::ModifyQp { qpn, first: None, attributes: wanted.encode() },
            Request::QueryQp { qpn },
            Request::ReserveMr { pdn, address, length: 4096, hca_va: address, access: 1 },
            Request::ModifyMr { mr, pdn, access: 1 },
            Request::AllocMw { pdn, type_2: false },
            Request::OpenXrcd { context, file: None, creates: true, exclusive: false },
            Request::AllocDm { context, length: 64, log2_alignment: 0 },
            wanted_ah(pdn),
        ]
    }

    /// Ends all that it has, in order.
    fn close(&self, bench: &mut Bench) {
        let Self { context, pdn, cqn, srqn, qpn, mr, ah, .. } = *self;
        for request in [
            Request::DestroyQp { qpn },
            Request::DestroySrq { srqn },
            Request::DestroyCq { cqn },
            Request::DestroyAh { ah },
            Request::DeregMr { mr },
            Request::DeallocPd { pdn },
            Request::CloseContext { context },
        ] {
            bench.ask(&self.peer, request);
        }
    }
}

fn reset(bench: &mut Bench) -> Response {
    let tool = bench.tool();
    bench.ask(&tool, Request::ResetCard { card: 0 }).0
}

/// A state word in a client's ring memory.
fn word(rings: &OwnedFd, offset: u32) -> u32 {
    let mapping = SharedMapping::new(rings.as_fd(), 0, 4096, Access::ReadWrite).unwrap();
    mapping.load_acquire_u32(offset as usize).unwrap()
}

#[test]
fn a_card_is_back_while_a_program_keeps_what_it_was() {
    let mut bench = Bench::new(1, 1);
    let memory = vec![0; 4096];
    let keeper = Keeper::new(&mut bench, &memory);
    let events = records(&keeper.fds[0]).len();
    assert_eq!(reset(&mut bench), Response::Reset { programs: 1 });
    assert_eq!(records(&keeper.fds[0]).len(), events + 1, "it is told once");

    // Others open it, and have all of it.
    let other = Keeper::new(&mut bench, &memory);
    // The former card fails, as a device does that has gone.
    for request in keeper.asks() {
        let refusal = bench.refused(&keeper.peer, request.clone());
        assert_eq!(refusal.errno, Errno::EIO as i32, "{request:?}: {refusal:?}");
    }
    // So it does in the same process that has opened it again, which is told apart.
    let (again, fds) = bench.open(&keeper.peer, 0);
    assert_ne!(again.grant.state, 0);
    let rings = &keeper.fds[4];
    assert_eq!((word(rings, 0), word(rings, again.grant.state)), (1, 0));
    assert!(again.grant.first && fds.len() == 4, "it has doorbells of its own");
    let (cqn, _) = bench.cq(&keeper.peer, again.context, None);
    let Keeper { pdn, channel, context, .. } = keeper;
    let refusal = bench.refused(&keeper.peer, Request::CreateQp(wanted_qp(pdn, cqn)));
    assert_eq!(refusal.errno, Errno::EIO as i32, "{refusal:?}");
    let vector = 0;
    let mixed = Request::CreateCq {
        context: again.context,
        log2_entries: 6,
        channel: Some(channel),
        vector,
        cookie: 0,
    };
    assert_eq!(bench.refused(&keeper.peer, mixed).errno, Errno::EINVAL as i32);
    let busy = bench.refused(&keeper.peer, Request::CloseContext { context });
    assert_eq!(busy.errno, Errno::EBUSY as i32);

    // Its ends succeed, and reach nothing of the card that is there.
    let live = |bench: &Bench| bench.cards[0].window(0, |window| window.live.clone());
    let (objects, mapped) = (live(&bench), bench.cards[0].mapped());
    keeper.close(&mut bench);
    assert_eq!((live(&bench), bench.cards[0].mapped()), (objects, mapped));
    assert_eq!(bench.server.cards.len(), 1, "nothing is left");
    assert_eq!(leaked(&bench.server.cards[0]), Default::default());
    bench.ask(&keeper.peer, Request::DestroyCq { cqn });
    bench.ask(&other.peer, Request::QueryQp { qpn: other.qpn });
    other.close(&mut bench);
}

#[test]
fn what_is_left_of_a_card_ends_with_its_program_and_cannot_be_named() {
    let mut bench = Bench::new(2, 1);
    let at_rest = bench.cards[0].mapped().len();
    let memory = vec![0; 4096];
    let first = Keeper::new(&mut bench, &memory);
    assert_eq!(reset(&mut bench), Response::Reset { programs: 1 });
    let second = Keeper::new(&mut bench, &memory);
    assert_eq!(reset(&mut bench), Response::Reset { programs: 2 });
    let numbers: Vec<_> = bench.server.cards.iter().map(|card| card.device.number).collect();
    assert_eq!(numbers, [0, 1, NUMBERS, 2 * NUMBERS]);
    for card in [NUMBERS, 2 * NUMBERS] {
        let refusal = bench.refused(&first.peer, Request::OpenContext { card });
        assert_eq!(refusal.errno, Errno::EINVAL as i32);
    }
    let (Response::Cards(cards), _) = bench.ask(&first.peer, Request::ListCards) else { panic!() };
    assert_eq!(cards.iter().map(|card| card.card).collect::<Vec<_>>(), [0, 1]);
    drop(first);
    bench.turn();
    assert_eq!(bench.server.cards.len(), 3);
    drop(second);
    bench.turn();
    assert_eq!(bench.server.cards.len(), 2);
    assert_eq!(bench.cards[0].mapped().len(), at_rest);
    let third = Keeper::new(&mut bench, &memory);
    third.close(&mut bench);
}

#[test]
fn who_was_given_the_card_itself_keeps_its_page_and_its_addresses_from_others() {
    let mut bench = Bench::new(1, 1);
    bench.cards[0].set_piece(2 << 20);
    let memory = vec![0; 4096];
    let keeper = Keeper::new(&mut bench, &memory);
    let addresses = |bench: &Bench, of: u32| -> Vec<(u64, u64)> {
        let owned = bench.server.clients.values().map(|client| &client.owned);
        let mrs = owned.clone().flat_map(|it| it.mrs.values()).filter(|mr| mr.card == of);
        let places = owned.filter_map(|it| it.places.get(&of)?.rings.as_ref());
        let ranges = mrs.filter_map(|mr| mr.range.as_ref()).chain(places);
        ranges.map(|range| (range.start(), range.start() + range.taken())).collect()
    };
    reset(&mut bench);
    let other = bench.provider();
    let (info, _fds) = bench.open(&other, 0);
    assert_eq!(info.grant.page, 2, "the first page is in somebody's hands");
    let pdn = bench.pd(&other, info.context);
    bench.mr(&other, pdn, &memory);
    let (old, new) = (addresses(&bench, NUMBERS), addresses(&bench, 0));
    assert_eq!((old.len(), new.len()), (2, 2));
    for old in &old {
        assert!(new.iter().all(|new| new.1 <= old.0 || old.1 <= new.0), "{old:x?} {new:x?}");
    }
    assert_eq!(bench.server.cards[0].users[0].pages[0], Page::Former);
    keeper.close(&mut bench);
    assert_eq!(bench.server.cards[0].users[0].pages[0], Page::Free);
    let next = bench.provider();
    assert_eq!(bench.open(&next, 0).0.grant.page, 1);
}
