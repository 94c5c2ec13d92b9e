//! From what an engine reports to what the clients of its window are told.

use std::collections::BTreeMap;

use fpga_regs::engine::event::{Event, EventType, QpEvent};
use fpga_regs::engine::qp::QpState;

use crate::cards::Card;
use crate::channels::{Key, Sent, async_record};
use crate::clients::{Client, ClientId};
use crate::engine::EngineEvent;
use crate::poller::Poller;

/// `ibv_event_type`, as far as the codes are not those of [`QpEvent`].
mod ibv_event {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const GID_CHANGE: u32 = 18;
}

/// The one port of a card, as port events name it.
const PORT: u64 = 1;

/// The clients, by number.
pub type Clients = BTreeMap<ClientId, Client>;

/// Events of one engine that are passed on before somebody else has a turn.
///
/// An engine that reports faster than it can be heard must not keep balboad from its clients.
const EVENTS_PER_TURN: usize = 4096;

/// Completion queues that are told of at a time, and QPs that are asked for, where events were lost.
const FIRED_PER_TURN: usize = 256;
const QUERIED_PER_TURN: usize = 8;

/// Tells the clients what the engines of all cards have reported so far; true when an engine has
/// more to say.
pub fn dispatch(cards: &mut [Card], clients: &mut Clients, poller: &Poller) -> bool {
    let mut more = false;
    for card in cards {
        for at in 0..card.windows.len() {
            for turn in 1..=EVENTS_PER_TURN {
                let Some(window) = card.windows.get_mut(at) else { break };
                let Some(event) = window.engine.next_event() else { break };
                route(card, at, event, clients, poller);
                more |= turn == EVENTS_PER_TURN;
            }
        }
    }
    more
}

fn route(card: &mut Card, at: usize, event: EngineEvent, clients: &mut Clients, poller: &Poller) {
    let number = card.number;
    let Some(window) = card.windows.get_mut(at) else { return };
    match event {
        EngineEvent::Card(event) => match event.kind {
            // Told when it was found.
            EventType::Completion => {}
            EventType::Qp => {
                let owner = window.qps.get(&event.number).and_then(|id| clients.get_mut(id));
                if let Some(client) = owner {
                    let what = QpEvent(event.code);
                    if what == QpEvent::Fatal {
                        client.log_unreachable(number, event.number);
                    }
                    qp_event(client, event.number, what, poller);
                }
            }
            EventType::CqError => {
                let owner = window.cqs.get(&event.number).and_then(|id| clients.get_mut(id));
                if let Some(client) = owner {
                    cq_error(client, event.number, poller);
                }
            }
            _ => port_event(number, window.index, event, clients, poller),
        },
        EngineEvent::Lost => {
            window.suspects.cqs = window.completions.numbers();
            window.suspects.qps = window.qps.keys().copied().collect();
        }
        EngineEvent::Dead => {
            // First, so that whoever is told finds it so: polls flush, posting fails.
            for client in clients.values().filter(|it| it.uses(number, window.index)) {
                client.lose_card(number);
            }
            tell_window(number, window.index, clients, poller, ibv_event::DEVICE_FATAL);
            window.completions.fire_all();
            // What ended this one may have ended the others, whose programs would hear of it late.
            card.windows.iter_mut().for_each(|window| window.engine.check());
        }
    }
}

/// Whether events were lost, and not everything was looked at yet that they may have told of.
#[must_use]
pub fn has_suspects(cards: &[Card]) -> bool {
    cards.iter().flat_map(|card| &card.windows).any(|window| !window.suspects.is_empty())
}

/// Looks at some of the queues of which events may have been lost.
pub fn examine_suspects(cards: &mut [Card], clients: &mut Clients, poller: &Poller) {
    for window in cards.iter_mut().flat_map(|card| &mut card.windows) {
        for _ in 0..FIRED_PER_TURN {
            let Some(cqn) = window.suspects.cqs.pop() else { break };
            window.completions.fire(cqn);
        }
        for _ in 0..QUERIED_PER_TURN {
            let Some(qpn) = window.suspects.qps.pop() else { break };
            let Some(id) = window.qps.get(&qpn) else { continue };
            let failed = window.engine.query_qp(qpn).is_ok_and(|qp| qp.state == QpState::Err);
            if let Some(client) = clients.get_mut(id).filter(|_| failed) {
                qp_event(client, qpn, QpEvent::Fatal, poller);
            }
        }
    }
}

fn qp_event(client: &mut Client, qpn: u32, what: QpEvent, poller: &Poller) {
    let Some(qp) = client.qps.get_mut(&qpn) else { return };
    if what == QpEvent::Fatal {
        qp.state = QpState::Err;
        if std::mem::replace(&mut qp.fatal_sent, true) {
            return;
        }
    }
    if what.name().is_none() {
        log::warn!(
            client = client.process.pid;
            "QP {qpn:#x}: event code {} is unknown and not passed on",
            what.0
        );
        return;
    }
    log::debug!("{} ({}): QP {qpn:#x}: {what:?}", client.process.command, client.process.pid);
    let Some(context) = client.contexts.get_mut(&qp.context) else { return };
    // The codes of QP events are those of `ibv_event_type`.
    let record = async_record(qp.cookie, u32::from(what.0));
    if context.events.send(poller, Key::Qp(qpn), record) == Sent::Yes {
        qp.async_sent = qp.async_sent.wrapping_add(1);
    }
}

fn cq_error(client: &mut Client, cqn: u32, poller: &Poller) {
    log::warn!(
        client = client.process.pid;
        "{}: completion queue {cqn:#x} overran",
        client.label()
    );
    let Some(cq) = client.cqs.get_mut(&cqn) else { return };
    let Some(context) = client.contexts.get_mut(&cq.context) else { return };
    let record = async_record(cq.cookie, ibv_event::CQ_ERR);
    if context.events.send(poller, Key::Cq(cqn), record) == Sent::Yes {
        cq.async_sent = cq.async_sent.wrapping_add(1);
    }
}

/// Tells every context of a card that its GID table has changed.
pub fn gids_changed(card: u32, clients: &mut Clients, poller: &Poller) {
    tell(card, clients, poller, ibv_event::GID_CHANGE, |_| true);
}

fn port_event(card: u32, window: u8, event: Event, clients: &mut Clients, poller: &Poller) {
    match event.kind {
        EventType::Port => {
            let up = event.code != 0;
            log::info!("balboa{card} window {window}: port {}", if up { "up" } else { "down" });
            let kind = if up { ibv_event::PORT_ACTIVE } else { ibv_event::PORT_ERR };
            tell_window(card, window, clients, poller, kind);
        }
        EventType::Gid => tell_window(card, window, clients, poller, ibv_event::GID_CHANGE),
        // The engine's death is an event of its own.
        EventType::Fatal => {}
        _ => log::warn!("balboa{card} window {window}: {event:?} is not passed on"),
    }
}

/// Sends an event of port or device to every context in a window.
fn tell_window(card: u32, window: u8, clients: &mut Clients, poller: &Poller, kind: u32) {
    tell(card, clients, poller, kind, |client| client.uses(card, window));
}

fn tell(
    card: u32,
    clients: &mut Clients,
    poller: &Poller,
    kind: u32,
    concerns: impl Fn(&Client) -> bool,
) {
    for client in clients.values_mut() {
        if !concerns(client) {
            continue;
        }
        for context in client.contexts.values_mut().filter(|context| context.card == card) {
            context.events.send(poller, Key::Device, async_record(PORT, kind));
        }
    }
}

const _: () = assert!(QpEvent::Fatal.0 as u32 == ibv_event::QP_FATAL);
