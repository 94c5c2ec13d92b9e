//! Events that the engines report of themselves, and balboad's reports to their programs.

use std::collections::BTreeMap;

use card_driver::engine::EngineEvent;
use fpga_regs::engine::qp::QpState;

use crate::cards::{Card, Users};
use crate::clients::Client;
use crate::listeners::{QueueNumbers, ibv_event};
use crate::process::ClientId;

/// The clients, by number.
pub type Clients = BTreeMap<ClientId, Client>;

/// Completion queues that are told of at a time, and QPs that are asked for, or shared
/// receive queues that are given their limits again, where events were lost.
const FIRED_PER_TURN: usize = 256;
const QUERIED_PER_TURN: usize = 8;

/// Acts on the events that the engines of all cards have reported of themselves so far.
pub fn dispatch(cards: &mut [Card], clients: &Clients) {
    for card in cards {
        for at in 0..card.device.windows.len() {
            while let Some(event) =
                card.device.windows.get_mut(at).and_then(|window| window.engine.next_event())
            {
                heed(card, at, event, clients);
            }
        }
    }
}

fn heed(card: &mut Card, at: usize, event: EngineEvent, clients: &Clients) {
    let number = card.device.number;
    let Some(window) = card.windows().nth(at) else { return };
    match event {
        EngineEvent::Lost { rings } => {
            let Users { listeners, suspects, .. } = window.users;
            // All but completions is told of in the first, the failures of queues, too.
            let all = if rings & 1 != 0 { u8::MAX } else { rings };
            suspects.cqs.add(listeners.cqs_told_in(all));
            if rings & 1 != 0 {
                let QueueNumbers { qps, srqs } = listeners.numbers();
                suspects.qps.add(qps);
                suspects.srqs.add(srqs);
            }
        }
        EngineEvent::Dead => {
            // First, so that a program that is told finds the card dead: polls flush, posting fails.
            for client in clients.values().filter(|it| it.uses(number, window.index)) {
                client.lose_card(number);
            }
            window.users.listeners.tell_all(ibv_event::DEVICE_FATAL);
            window.users.listeners.fire_all();
            window.users.listeners.fail_targets();
            // The cause of this engine's end may have ended the others, whose programs would hear of it late.
            card.device.windows.iter_mut().for_each(|window| window.engine.check());
        }
    }
}

/// Whether events were lost, and not everything was looked at yet that they may have told of.
#[must_use]
pub fn has_suspects(cards: &[Card]) -> bool {
    cards.iter().flat_map(|card| &card.users).any(|users| !users.suspects.is_empty())
}

/// Looks at some of the queues of which events may have been lost.
pub fn examine_suspects(cards: &mut [Card]) {
    if !has_suspects(cards) {
        return;
    }
    for window in cards.iter_mut().flat_map(Card::windows) {
        for _ in 0..FIRED_PER_TURN {
            let Some(cqn) = window.users.suspects.cqs.take() else { break };
            window.users.listeners.fire(cqn);
        }
        for _ in 0..QUERIED_PER_TURN {
            let Some(qpn) = window.users.suspects.qps.take() else { break };
            if !window.users.listeners.has_qp(qpn) {
                continue;
            }
            if window.engine.query_qp(qpn).is_ok_and(|qp| qp.state == QpState::Err) {
                window.users.listeners.fail_qp(qpn);
            }
        }
        for _ in 0..QUERIED_PER_TURN {
            let Some(srqn) = window.users.suspects.srqs.take() else { break };
            if !window.users.listeners.has_srq(srqn) {
                continue;
            }
            // It is told of behind this if it fell below its limit, for it is still below, or has a
            // limit again. If it cannot be told of any more, that is because its engine has died.
            let limit = window.users.listeners.srq_limit(srqn);
            let _ = window.engine.modify_rq(srqn, 0);
            if limit > 0 && window.users.listeners.srq_limit(srqn) == limit {
                let _ = window.engine.modify_rq(srqn, limit);
            }
        }
    }
}

/// Tells every context of a card that its GID table has changed.
pub fn gids_changed(card: &Card) {
    for users in &card.users {
        users.listeners.tell_all(ibv_event::GID_CHANGE);
    }
}
