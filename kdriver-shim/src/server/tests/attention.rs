//! How long a program waits for balboad's work for others: one command at most.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use shim_abi::ContextInfo;

use super::bench::Peer;
use super::*;

/// A program on a card that waits for the events of a completion queue.
struct Waiting {
    cqn: u32,
    context: ContextInfo,
    /// The channel of completion events, and the socket of the asynchronous ones.
    channel: Rc<OwnedFd>,
    events: OwnedFd,
    peer: Peer,
}

fn waiting(bench: &mut Bench, card: u32) -> Waiting {
    let peer = bench.provider();
    let (context, mut fds) = bench.open(&peer, card);
    let (channel, mut channel_fds) = bench.channel(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, Some(channel));
    let channel = Rc::new(channel_fds.remove(0));
    Waiting { cqn, context, channel, events: fds.remove(0), peer }
}

fn completion(cqn: u32) -> Event {
    Event { kind: EventType::Completion, number: cqn, ..Event::default() }
}

#[test]
fn a_completion_is_told_before_the_next_command_of_another_clients_request() {
    // Of the card that is busy, and of one that is not.
    for card in [0, 1] {
        let mut bench = Bench::new(2, 2);
        let waiting = waiting(&mut bench, card);
        let busy = bench.provider();
        let (context, _fds) = bench.open(&busy, 0);
        let pdn = bench.pd(&busy, context.context);
        let (cqn, _) = bench.cq(&busy, context.context, None);
        let qpn = bench.qp(&busy, pdn, cqn);
        let told: Rc<RefCell<Vec<usize>>> = Rc::default();
        let fired = Cell::new(false);
        let seen = Rc::clone(&told);
        let channel = Rc::clone(&waiting.channel);
        let theirs = Rc::clone(&bench.cards[card as usize]);
        bench.cards[0].behind_commands(move || {
            seen.borrow_mut().push(records(&channel).len());
            if !fired.replace(true) {
                theirs.raise(0, completion(waiting.cqn));
            }
        });
        // The queue pair, then its receive queue.
        bench.ask(&busy, Request::DestroyQp { qpn });
        assert_eq!(*told.borrow(), [0, 1], "on card {card}");
    }
}

#[test]
fn what_is_heard_while_the_counters_are_written_is_told_without_anything_else_happening() {
    let mut bench = Bench::new(2, 1);
    let waiting = waiting(&mut bench, 0);
    let pdn = bench.pd(&waiting.peer, waiting.context.context);
    let qpn = bench.qp(&waiting.peer, pdn, waiting.cqn);
    let card = Rc::clone(&bench.cards[0]);
    let fired = Cell::new(false);
    // Behind the first card's command; the second card's finds the interrupt.
    bench.cards[0].behind_commands(move || {
        if !fired.replace(true) {
            card.raise(0, completion(waiting.cqn));
            let code = QpEvent::Fatal.0;
            card.raise(0, Event { kind: EventType::Qp, code, number: qpn, ..Event::default() });
        }
    });
    bench.server.write_counters(Instant::now() + Duration::from_secs(10));
    assert_eq!(records(&waiting.channel).len(), 1);
    assert_eq!(records(&waiting.events).len(), 1);
}

/// Lets a client be another process's, one that was served an hour long while others waited.
fn make_insatiable(bench: &mut Bench, id: ClientId) {
    const PID: i32 = i32::MAX;
    let hour = Duration::from_secs(3600);
    bench.server.clients.get_mut(&id).unwrap().process.pid = PID;
    let service = Service { took: hour, ..Service::default() };
    bench.server.pace.charge(PID, service, Instant::now());
    assert!(bench.server.pace.rests(PID, Instant::now()).is_some());
    // The others wait for events, however slow this test is.
    for client in bench.server.clients.values().filter(|client| client.process.pid != PID) {
        client.told.set(Some(Instant::now() + hour));
    }
}

#[test]
fn who_asks_without_end_is_not_heard_while_others_wait_for_events_and_then_again() {
    let mut bench = Bench::new(1, 1);
    let waiting = waiting(&mut bench, 0);
    let busy = bench.provider();
    let id = *bench.server.clients.last_key_value().unwrap().0;
    let (context, _fds) = bench.open(&busy, 0);
    let context = context.context;
    make_insatiable(&mut bench, id);
    let query = shim_abi::encode(&Request::QueryPort { context });
    fdpass::send(busy.socket.as_fd(), &query, &[], Wait::Never).unwrap();
    bench.cards[0].raise(0, completion(waiting.cqn));
    bench.turn();
    assert_eq!(records(&waiting.channel).len(), 1, "who waits is told");
    let mut room = vec![0; MAX_MESSAGE];
    let mut answer = || fdpass::receive(busy.socket.as_fd(), &mut room, Wait::Never);
    assert!(answer().is_err_and(|error| error.would_block()));
    while answer().is_err_and(|error| error.would_block()) {
        assert!(bench.server.step(None).unwrap());
    }
    // Nor is another connection of its process heard, and either may go meanwhile.
    let other = bench.provider();
    let second = *bench.server.clients.last_key_value().unwrap().0;
    make_insatiable(&mut bench, id);
    make_insatiable(&mut bench, second);
    for peer in [&busy, &other] {
        fdpass::send(peer.socket.as_fd(), &query, &[], Wait::Never).unwrap();
    }
    bench.turn();
    assert_eq!(bench.server.clients.len(), 3);
    drop((busy, other));
    bench.turn();
    assert_eq!(bench.server.clients.len(), 1);
}

#[test]
fn to_end_what_one_has_makes_nobody_rest_but_to_try_to_does() {
    let mut bench = Bench::new(1, 1);
    let waiting = waiting(&mut bench, 0);
    let busy = bench.provider();
    let (context, _fds) = bench.open(&busy, 0);
    let pdn = bench.pd(&busy, context.context);
    let (own, hour) = (nix::unistd::getpid().as_raw(), Duration::from_secs(3600));
    let first = *bench.server.clients.first_key_value().unwrap().0;
    let client = bench.server.clients.get_mut(&first).unwrap();
    client.process.pid = i32::MAX;
    client.told.set(Some(Instant::now() + hour));
    // All that it is granted is spent, by what makes nobody rest.
    let spent = Service { took: hour, objects: 9, ended_one: true };
    bench.server.pace.charge(own, spent, Instant::now());
    bench.server.pace.charge(own, spent, Instant::now());
    bench.ask(&busy, Request::DeallocPd { pdn });
    assert_eq!(bench.server.pace.rests(own, Instant::now()), None);
    bench.refused(&busy, Request::DeallocPd { pdn });
    assert!(bench.server.pace.rests(own, Instant::now()).is_some());
    drop(waiting);
}
