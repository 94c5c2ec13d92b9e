// Commands to the transport, one at a time.
module balboa_commands
  import balboa_port_pkg::*;
(
    input  logic               clk,
    input  logic               rst_n,
    input  logic               asks,
    input  port_command_t      ask,
    // The transport has it; its answer is taken in an idle cycle of the engine, in which no payload is under way.
    output logic               waits,
    input  logic               may_take,
    output logic               takes,
    output logic               ended,
    output port_command_done_t done,
    // The transport.
    output logic               command_valid,
    input  logic               command_ready,
    output port_command_t      command,
    input  logic               command_done_valid,
    output logic               command_done_ready,
    input  port_command_done_t command_done
);
  typedef enum logic [1:0] {
    IDLE,
    GIVE,
    WAIT,
    DONE
  } state_t;

  state_t state;

  assign waits              = state == WAIT;
  assign ended              = state == DONE;
  assign command_valid      = state == GIVE;
  assign command_done_ready = waits && may_take;
  assign takes              = command_done_ready && command_done_valid;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
    end else begin
      case (state)
        GIVE:    if (command_ready) state <= WAIT;
        WAIT:    if (takes) state <= DONE;
        default: state <= asks ? GIVE : IDLE;
      endcase
    end
  end

  always_ff @(posedge clk) begin
    if (asks) command <= ask;
    if (takes) done <= command_done;
  end
endmodule
