// The queue engine in a vFPGA, with the ports that the simulation drives. Records of port N stand in the lowest bits of
// words that are wider.
module engine_top
  import balboa_host_pkg::*;
  import balboa_port_pkg::*;
(
    `include "vfpga_ports.svh"
    output logic [  31:0] notify,
    output logic          command_valid,
    input  logic          command_ready,
    output logic [1151:0] command_bits,
    input  logic          command_done_valid,
    output logic          command_done_ready,
    input  logic [1087:0] command_done_bits,
    output logic          submit_valid,
    input  logic          submit_ready,
    output logic [ 223:0] submit_bits,
    input  logic          room_valid,
    output logic          room_ready,
    input  logic [  95:0] room_bits,
    input  logic          check_valid,
    output logic          check_ready,
    input  logic [ 191:0] check_bits,
    output logic          checked_valid,
    input  logic          checked_ready,
    output logic [  95:0] checked_bits,
    input  logic          claim_valid,
    output logic          claim_ready,
    input  logic [  95:0] claim_bits,
    output logic          claimed_valid,
    input  logic          claimed_ready,
    output logic [  95:0] claimed_bits,
    input  logic          fetch_valid,
    output logic          fetch_ready,
    input  logic [ 223:0] fetch_bits,
    output logic          fetched_valid,
    input  logic          fetched_ready,
    output logic [  95:0] fetched_bits,
    output logic          fetched_beat_valid,
    input  logic          fetched_beat_ready,
    output logic [ 543:0] fetched_beat_bits,
    input  logic          place_valid,
    output logic          place_ready,
    input  logic [ 223:0] place_bits,
    input  logic          place_beat_valid,
    output logic          place_beat_ready,
    input  logic [ 543:0] place_beat_bits,
    output logic          placed_valid,
    input  logic          placed_ready,
    output logic [  95:0] placed_bits,
    input  logic          report_valid,
    output logic          report_ready,
    input  logic [ 127:0] report_bits,
    output logic          stop,
    input  logic          transport_quiet,
    output logic          engine_quiet
);
  logic                      write_valid;
  logic                      write_ready;
  register_write_t           write;
  logic               [15:0] read_address;
  logic               [63:0] read_data;
  host_request_t             sq_rd;
  host_request_t             sq_wr;
  host_beat_t                recv;
  host_beat_t                send;
  port_command_t             command;
  port_command_done_t        command_done;
  port_submit_t              submit;
  port_room_t                room;
  port_check_t               check;
  port_checked_t             checked;
  port_claim_t               claim;
  port_claimed_t             claimed;
  port_transfer_t            fetch;
  port_fetched_t             fetched;
  port_beat_t                fetched_beat;
  port_transfer_t            place;
  port_beat_t                place_beat;
  port_placed_t              placed;
  port_report_t              report;

  assign {sq_rd_stream, sq_rd_length, sq_rd_address} = sq_rd;
  assign {sq_wr_stream, sq_wr_length, sq_wr_address} = sq_wr;
  assign recv = '{last: recv_last, keep: recv_keep, data: recv_data};
  assign {send_last, send_keep, send_data} = send;
  assign command_bits = 1152'(command);
  assign command_done = command_done_bits[$bits(port_command_done_t)-1:0];
  assign submit_bits = 224'(submit);
  assign room = room_bits[$bits(port_room_t)-1:0];
  assign check = check_bits[$bits(port_check_t)-1:0];
  assign checked_bits = 96'(checked);
  assign claim = claim_bits[$bits(port_claim_t)-1:0];
  assign claimed_bits = 96'(claimed);
  assign fetch = fetch_bits[$bits(port_transfer_t)-1:0];
  assign fetched_bits = 96'(fetched);
  assign fetched_beat_bits = 544'(fetched_beat);
  assign place = place_bits[$bits(port_transfer_t)-1:0];
  assign place_beat = place_beat_bits[$bits(port_beat_t)-1:0];
  assign placed_bits = 96'(placed);
  assign report = report_bits[$bits(port_report_t)-1:0];

  balboa_axil axil (.*);
  // About 1 ms: no answer of the simulation takes as long.
  balboa_engine #(.PatienceBits(18)) engine (.*);

  logic unused;
  assign unused = &{1'b0, cq_rd_valid, cq_rd_stream, cq_wr_stream};
endmodule
