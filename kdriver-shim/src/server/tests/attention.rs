//! A program's wait for events does not depend on other programs' requests.

use std::sync::mpsc;

use shim_abi::ContextInfo;

use super::bench::Peer;
use super::*;

/// A program on a card that waits for the events of a completion queue.
struct Waiting {
    cqn: u32,
    context: ContextInfo,
    /// The channel of completion events, and the socket of the asynchronous ones.
    channel: OwnedFd,
    events: OwnedFd,
    peer: Peer,
}

fn waiting(bench: &mut Bench, card: u32) -> Waiting {
    let peer = bench.provider();
    let (context, mut fds) = bench.open(&peer, card);
    let (channel, mut channel_fds) = bench.channel(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, Some(channel));
    let channel = channel_fds.remove(0);
    Waiting { cqn, context, channel, events: fds.remove(0), peer }
}

fn completion(cqn: u32) -> Event {
    Event { kind: EventType::Completion, number: cqn, ..Event::default() }
}

/// Waits for one record, without end: a test that fails here stands still.
fn record(fd: &OwnedFd) -> Vec<u8> {
    let mut buffer = [0; 64];
    let received = fdpass::receive(fd.as_fd(), &mut buffer, Wait::AsSocket).unwrap();
    buffer[..received.bytes].to_vec()
}

#[test]
fn events_are_told_in_the_middle_of_another_clients_command() {
    // Of the card that is busy, and of one that is not.
    for card in [0, 1] {
        let mut bench = Bench::new(2, 2);
        let Waiting { cqn, context, channel, events, peer } = waiting(&mut bench, card);
        let pdn = bench.pd(&peer, context.context);
        let failing = bench.qp(&peer, pdn, cqn);
        let busy = bench.provider();
        let (context, _fds) = bench.open(&busy, 0);
        let pdn = bench.pd(&busy, context.context);
        let (busy_cqn, _) = bench.cq(&busy, context.context, None);
        let qpn = bench.qp(&busy, pdn, busy_cqn);
        bench.serve_interrupts();
        let theirs = Arc::clone(&bench.cards[card as usize]);
        let (tell, told) = mpsc::channel();
        bench.cards[0].script(move |card, offset, value| {
            card.pass(offset, value);
            if !is_doorbell(offset) {
                return;
            }
            // The control thread is here until both have been told.
            theirs.raise(0, completion(cqn));
            let code = QpEvent::Fatal.0;
            theirs
                .raise(0, Event { kind: EventType::Qp, code, number: failing, ..Event::default() });
            tell.send((record(&channel).len(), record(&events).len())).unwrap();
        });
        bench.ask(&busy, Request::QueryQp { qpn });
        assert_eq!(told.recv().unwrap(), (8, 16), "on card {card}");
    }
}
