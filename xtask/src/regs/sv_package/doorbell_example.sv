// A module that uses the package, for the linter: the decoding of a doorbell page's writes.
module doorbell_example
  import balboa_card_pkg::*;
(
    input  logic                 clk,
    input  logic                 rst_n,
    // One write beat of the user CSR window.
    input  logic                 write_valid,
    input  logic [15:0]          write_address,
    input  logic [63:0]          write_data,
    input  logic [7:0]           write_strobe,
    // A queue to look at.
    output logic                 rang,
    output logic [3:0]           page,
    output doorbell_queue_code_t kind,
    // Its number modulo 128.
    output logic [6:0]           place,
    output doorbell_slot_value_t value,
    // An example entry, as one beat.
    output block_t               entry
);
  cqe_t completion;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      rang  <= 1'b0;
      page  <= '0;
      kind  <= DOORBELL_QUEUE_CODE_SEND;
      place <= '0;
      value <= '0;
    end else begin
      // A store acts only with all its strobes; the rest of a line burst has none.
      rang  <= write_valid && &write_strobe && write_address[15:12] != 4'd0
               && write_address[2:0] == 3'd0;
      page  <= write_address[15:12];
      kind  <= doorbell_queue_code_t'({6'd0, write_address[11:10]});
      place <= write_address[9:3];
      value <= doorbell_slot_value_t'(write_data);
    end
  end

  always_comb begin
    completion            = '0;
    completion.qpn        = {8'd0, value.number};
    completion.opcode     = CQE_OPCODE_WRITE;
    completion.status     = CQE_STATUS_SUCCESS;
    completion.generation = value.generation;
    completion.phase      = {7'd0, expected_phase(value.index, 5'd8)};
    entry                 = completion;
  end
endmodule
