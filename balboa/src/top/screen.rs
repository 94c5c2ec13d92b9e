//! The screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line as Text;
use ratatui::widgets::{Cell, Row, Table};

use super::{CardLine, Line, View, short};

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let cards = u16::try_from(view.cards.len()).unwrap_or(u16::MAX).saturating_add(1);
    let clients = u16::try_from(view.clients.len()).unwrap_or(u16::MAX).saturating_add(1);
    // Programs get at most half of the lines that the cards leave; QPs get the rest.
    let most = frame.area().height.saturating_sub(cards.saturating_add(5)) / 2;
    let rows = [
        Constraint::Length(2),
        Constraint::Length(cards.saturating_add(1)),
        Constraint::Length(clients.min(most.max(2)).saturating_add(1)),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [head, top, middle, bottom, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Text::from(view.head.as_str()), head);
    let widths = [9, 5, 9, 9, 9, 9, 9, 9, 6, 6].map(Constraint::Length);
    let titles = [
        "CARD", "LINK", "TX b/s", "RX b/s", "TX pkt/s", "RX pkt/s", "RETX/s", "BAD/s", "QPS",
        "SERVED",
    ];
    frame.render_widget(table(&titles, view.cards.iter().map(card), &widths), top);
    let widths = [8, 16, 9, 9, 9, 7, 6].map(Constraint::Length);
    let titles = ["PID", "COMMAND", "TX pkt/s", "RX pkt/s", "CARDS", "QPS", "MRS"];
    frame.render_widget(table(&titles, view.clients.iter().map(line), &widths), middle);
    let widths = [8, 16, 9, 9, 9, 8, 9, 6].map(Constraint::Length);
    let widths: Vec<_> = widths.into_iter().chain([Constraint::Min(20)]).collect();
    let titles =
        ["PID", "COMMAND", "TX pkt/s", "RX pkt/s", "QPN", "CARD", "SERVICE", "STATE", "TO"];
    frame.render_widget(table(&titles, view.qps.iter().map(line), &widths), bottom);
    let keys = format!("q quit   s sort: {}", view.sort.name());
    frame.render_widget(Text::from(keys).style(Modifier::REVERSED), foot);
}

fn table<'a>(
    titles: &[&'a str],
    rows: impl Iterator<Item = Row<'a>>,
    widths: &[Constraint],
) -> Table<'a> {
    let head = Row::new(titles.iter().map(|title| Cell::from(*title)));
    let head = head.style(Style::from(Modifier::BOLD));
    Table::new(rows, widths.to_vec()).header(head).column_spacing(1)
}

fn card(card: &CardLine) -> Row<'_> {
    let rates = card.bits.into_iter().chain(card.packets).chain([card.retransmitted, card.bad]);
    let first = [card.name.clone(), if card.up { "up" } else { "down" }.to_owned()];
    Row::new(
        first
            .into_iter()
            .chain(rates.map(short))
            .chain([card.qps, card.served].map(|count| count.to_string())),
    )
}

fn line(line: &Line) -> Row<'_> {
    let first = [line.pid.to_string(), line.command.clone()];
    let rates = line.packets.into_iter().map(short);
    Row::new(first.into_iter().chain(rates).chain(line.cells.iter().cloned()))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::Sort;
    use super::super::tests::view;
    use super::*;

    fn shown(width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &view(Sort::Rate))).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |row: &[ratatui::buffer::Cell]| {
            let line: String = row.iter().map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned() + "\n"
        };
        buffer.content().chunks(width.into()).map(line).collect()
    }

    #[test]
    fn cards_programs_and_qps_have_a_line_each() {
        let text = shown(110, 24);
        for expected in [
            "balboad 1.2, process 7, in D\n",
            "\nbalboa0   up    8.00M     0         0 ",
            "\n11       a                10        0         0         1       2\n",
            " 0x00000b  balboa0  RC        RTS    0x000009 at ::ffff:10.0.0.2\n",
            "q quit   s sort: rate\n",
        ] {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
        assert!(!text.replace('\n', "").contains(char::is_control), "{text:?}");
    }

    #[test]
    fn no_terminal_is_too_small() {
        for (width, height) in [(1, 1), (20, 3), (200, 2)] {
            shown(width, height);
        }
    }
}
