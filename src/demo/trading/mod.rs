//! The system of the trading bot's table, judged from the record of its sample upstream.

pub mod judge;
