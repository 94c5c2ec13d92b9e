//! balboad as a process: its command line, its clients, real frames between its cards.

mod attacks;
mod command_line;
mod common;
mod death;
mod end_to_end;
mod node;
mod service;
mod states;
