// The adaptor from the records of this engine's host side to those of a Coyote shell's ports, in either layout. It has
// no state: valid and ready of requests and of notify pass beside it, as do registers and beats.
module balboa_coyote
  import balboa_coyote_pkg::*;
  import balboa_host_pkg::*;
#(
    // Whether the shell has the layout without the flags of requests and completions.
    parameter bit Newer = 1'b1
) (
    // Of the process whose memory it is, as the driver numbers them; held.
    input  logic          [             5:0] pid,
    // The engine's side.
    input  host_request_t                    sq_rd,
    input  host_request_t                    sq_wr,
    input  logic          [            31:0] notify,
    output logic                             cq_rd_valid,
    output logic          [             3:0] cq_rd_stream,
    output logic                             cq_wr_valid,
    output logic          [             3:0] cq_wr_stream,
    // The shell's side.
    output logic          [REQUEST_BITS-1:0] shell_sq_rd,
    output logic          [REQUEST_BITS-1:0] shell_sq_wr,
    output logic          [ NOTIFY_BITS-1:0] shell_notify,
    input  logic                             shell_cq_rd_valid,
    input  logic          [    ACK_BITS-1:0] shell_cq_rd,
    input  logic                             shell_cq_wr_valid,
    input  logic          [    ACK_BITS-1:0] shell_cq_wr
);
  localparam int unsigned REQUEST_SHIFT = Newer ? REQUEST_FLAGS : 0;
  localparam int unsigned ACK_SHIFT = Newer ? ACK_FLAGS : 0;

  // A request of this engine's. Each has its completion, so each is its transfer's last.
  function automatic logic [REQUEST_BITS-1:0] request_of(input logic [4:0] opcode, input logic [5:0] of_process,
                                                         input host_request_t request);
    logic [REQUEST_BITS-1:0] record;
    record = '0;
    record[REQUEST_OPCODE+:5] = opcode;
    record[REQUEST_KIND+:2] = KIND_HOST;
    record[REQUEST_PID+REQUEST_SHIFT+:6] = of_process;
    record[REQUEST_STREAM+REQUEST_SHIFT+:4] = request.stream;
    record[REQUEST_LAST+REQUEST_SHIFT] = 1'b1;
    record[REQUEST_ADDRESS+REQUEST_SHIFT+:48] = request.address;
    record[REQUEST_LENGTH+REQUEST_SHIFT+:28] = request.length;
    return record;
  endfunction

  // Whether a completion is of this engine's: the shell tells of the network's too, and of what the driver asked it for.
  function automatic logic is_own(input logic [4:0] opcode, input logic [5:0] of_process,
                                  input logic [ACK_BITS-1:0] ack);
    logic has_flags;
    has_flags = !Newer && (ack[ACK_KIND-1-:ACK_FLAGS] != '0);
    return ack[ACK_OPCODE+:5] == opcode && ack[ACK_KIND+:2] == KIND_HOST &&
        ack[ACK_PID+ACK_SHIFT+:6] == of_process && !has_flags;
  endfunction

  assign shell_sq_rd  = request_of(OPCODE_READ, pid, sq_rd);
  assign shell_sq_wr  = request_of(OPCODE_WRITE, pid, sq_wr);
  assign shell_notify = {pid, notify};
  assign cq_rd_valid  = shell_cq_rd_valid && is_own(OPCODE_READ, pid, shell_cq_rd);
  assign cq_wr_valid  = shell_cq_wr_valid && is_own(OPCODE_WRITE, pid, shell_cq_wr);
  assign cq_rd_stream = shell_cq_rd[ACK_STREAM+ACK_SHIFT+:4];
  assign cq_wr_stream = shell_cq_wr[ACK_STREAM+ACK_SHIFT+:4];
endmodule
