//! Tests by behaviour, on real services. `tests/run` provides those; without it, set AMQP_URL,
//! RABBITMQ_MANAGEMENT_URL and DATABASE_URL. A missing service fails loudly.

#![allow(clippy::unwrap_used, reason = "these are tests, helper functions included")]

mod acknowledging;
mod api;
mod api_access;
mod appstore;
mod broker_contract;
mod broker_rabbit;
mod broker_tls;
mod broker_users;
mod catch_up;
mod chaos_parts;
mod cli;
mod commands;
mod companions;
mod crash;
mod deaths;
mod delays;
mod demos;
mod demos_game;
mod discovery;
mod disk;
mod doctor;
mod documentation;
mod encryption;
mod end_to_end;
mod examples;
mod failover;
mod failures;
mod flatness;
mod fleet;
mod forecast;
mod foreign_clients;
mod handlers;
mod harness;
mod history;
mod hostile;
mod import;
mod ledger_contract;
mod ledger_postgres;
mod listener;
mod measurements;
mod message_schema;
mod messages;
mod monitoring;
mod mutants;
mod node;
mod operator;
mod orders;
mod outage;
mod outward;
mod pauses_parts;
mod progress;
mod protocol;
mod quarantine;
mod ready_made;
mod recurring;
mod rosters;
mod screen;
mod secrets;
mod served;
mod site;
mod structure;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the chaos test and the throttles' test use the rest")]
mod support;
mod throttle_orders;
mod throttled_fleet;
mod throttling;
mod timelines;
mod top;
mod traces;
mod upstream;
mod virtual_time;
mod wall_clock;
