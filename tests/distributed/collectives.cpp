// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Values of the collectives over dtypes, layouts and sizes that users hold, and errors that reach
// every rank.
#include "support/thread_ranks.hpp"

#include <accel/comm/partial_state.hpp>
#include <accel/detail/error.hpp>

#include <boost/hana/define_struct.hpp>
#include <catch2/catch_all.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/torch.h>

using accel::PartialState;
using accel::Reduction;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<at::Tensor> on_ranks(int size,
                                 const std::function<at::Tensor(const PartialState&)>& body) {
  return results_of_ranks<at::Tensor>(size, body);
}

struct Scores {
  BOOST_HANA_DEFINE_STRUCT(Scores, (at::Tensor, hits), (std::vector<at::Tensor>, losses),
                           (std::string, note));
};
struct Marks {
  BOOST_HANA_DEFINE_STRUCT(Marks, (at::Tensor, hits), (std::vector<at::Tensor>, losses));
};

}  // namespace

TEST_CASE("B36 gather of 0-dim tensors gives one row a rank") {
  for (const auto& all : on_ranks(2, [](const PartialState& state) {
         return state.gather(torch::tensor(state.process_index() + 1));
       }))
    CHECK(torch::equal(all, torch::tensor({1, 2})));
}

TEST_CASE("B36 reduce keeps the shape") {
  for (const auto& mean : on_ranks(2, [](const PartialState& state) {
         return state.reduce(torch::tensor(float(state.process_index() + 1)), Reduction::mean);
       })) {
    CHECK(mean.dim() == 0);
    CHECK(mean.item<float>() == 1.5f);
  }
}

TEST_CASE("B36 bool stays bool") {
  const auto mine = [](const PartialState& state) {
    return state.is_main_process() ? torch::tensor({true, false, false})
                                   : torch::tensor({true, true, false});
  };
  for (const auto& any :
       on_ranks(2, [&](const auto& state) { return state.reduce(mine(state), Reduction::max); }))
    CHECK(torch::equal(any, torch::tensor({true, true, false})));
  for (const auto& all :
       on_ranks(2, [&](const auto& state) { return state.reduce(mine(state), Reduction::min); }))
    CHECK(torch::equal(all, torch::tensor({true, false, false})));
}

TEST_CASE("B36 integers are exact, and their mean is refused") {
  const int64_t big = (int64_t{1} << 53) + 1;
  for (const auto& sum : on_ranks(2, [&](const PartialState& state) {
         return state.reduce(torch::tensor(state.is_main_process() ? big : int64_t{1}));
       }))
    CHECK(sum.item<int64_t>() == 9007199254740994);
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         (void)state.reduce(torch::tensor(3 + state.process_index()), Reduction::mean);
       }))
    CHECK_THAT(error, ContainsSubstring("mean") && ContainsSubstring("convert to a floating type"));
}

TEST_CASE("B36 sums and means of 16-bit floats are fp32, over one process too") {
  for (const auto type : {torch::kBFloat16, torch::kHalf, torch::kFloat8_e5m2}) {
    CAPTURE(type);
    const auto mine = [&](const PartialState& state) {
      return torch::tensor(state.is_main_process() ? 256.0f : 1.0f).to(type);
    };
    for (const auto& sum :
         on_ranks(2, [&](const PartialState& state) { return state.reduce(mine(state)); })) {
      CHECK(sum.scalar_type() == torch::kFloat);
      CHECK(sum.item<float>() == 257.0f);  // 256 in bfloat16
    }
    for (const auto& mean : on_ranks(2, [&](const PartialState& state) {
           return state.reduce(mine(state), Reduction::mean);
         }))
      CHECK(mean.item<float>() == 128.5f);
    for (const auto& greatest : on_ranks(2, [&](const PartialState& state) {
           return state.reduce(mine(state), Reduction::max);
         })) {
      CHECK(greatest.scalar_type() == type);
      CHECK(greatest.to(torch::kFloat).item<float>() == 256.0f);
    }
    const PartialState alone{accel::Communicator(), torch::kCPU};
    CHECK(alone.reduce(mine(alone)).scalar_type() == torch::kFloat);
  }
}

TEST_CASE("a NaN of any rank is in the max and the min of all") {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble})
    for (const auto reduction : {Reduction::max, Reduction::min})
      for (int with_nan = 0; with_nan < 3; ++with_nan) {
        CAPTURE(type, reduction, with_nan);
        for (const auto& all : on_ranks(3, [&](const PartialState& state) {
               const auto rank = state.process_index();
               const auto odd = rank == with_nan ? std::nan("") : double(rank);
               return state.reduce(torch::tensor({odd, double(rank),
                                                  rank == 1 ? -double(INFINITY) : double(INFINITY)})
                                       .to(type),
                                   reduction);
             })) {
          const bool is_max = reduction == Reduction::max;
          CHECK(all.scalar_type() == type);
          CHECK(all[0].isnan().item<bool>());
          CHECK(all[1].to(torch::kDouble).item<double>() == (is_max ? 2.0 : 0.0));
          CHECK(all[2].to(torch::kDouble).item<double>() == (is_max ? INFINITY : -INFINITY));
        }
      }
}

TEST_CASE("B36 unsigned integers are exact, beyond the signed ones") {
  const auto reduced = [](c10::ScalarType type, int64_t bits_of_0, int64_t bits_of_1,
                          Reduction reduction) {
    const auto all = on_ranks(2, [&](const PartialState& state) {
      return state.reduce(torch::tensor(state.is_main_process() ? bits_of_0 : bits_of_1).to(type),
                          reduction);
    });
    for (const auto& each : all) CHECK(each.scalar_type() == type);
    CHECK(torch::equal(all[0].to(torch::kLong), all[1].to(torch::kLong)));
    return static_cast<uint64_t>(all[0].to(torch::kLong).item<int64_t>());
  };
  CHECK(reduced(torch::kUInt16, 65000, 500, Reduction::sum) == 65500);
  CHECK(reduced(torch::kUInt16, 65000, 500, Reduction::max) == 65000);
  CHECK(reduced(torch::kUInt32, 4294967000, 200, Reduction::sum) == 4294967200);
  CHECK(reduced(torch::kUInt32, 4294967000, 200, Reduction::min) == 200);
  CHECK(reduced(torch::kUInt64, -2, 1, Reduction::sum) == 18446744073709551615u);
  CHECK(reduced(torch::kUInt64, -2, 1, Reduction::max) == 18446744073709551614u);
  CHECK(reduced(torch::kUInt64, -2, 1, Reduction::min) == 1);
}

TEST_CASE("B36 a sum of 16-bit floats is rounded once") {
  for (const auto& sum : on_ranks(3, [](const PartialState& state) {
         return state.reduce(
             torch::tensor(state.is_main_process() ? 256.0f : 1.0f).to(torch::kBFloat16));
       }))
    CHECK(sum.item<float>() == 258.0f);  // 256 + 1 is 256 in bfloat16, twice
}

TEST_CASE("B36 padding across ranks keeps bool and pads where asked") {
  const auto filled = on_ranks(2, [](const PartialState& state) {
    return state.pad_across_processes(
        torch::ones({2, state.is_main_process() ? 3 : 5}, torch::kBool), 1);
  });
  CHECK(torch::equal(filled[0][1], torch::tensor({true, true, true, false, false})));
  CHECK(filled[1].all().item<bool>());
  for (const auto& padded : on_ranks(2, [](const PartialState& state) {
         return state.pad_across_processes(
             torch::ones({2, state.is_main_process() ? 3 : 5}, torch::kBool), 1);
       })) {
    CHECK(padded.scalar_type() == torch::kBool);
    CHECK(padded.size(1) == 5);
  }
  const auto first = on_ranks(2, [](const PartialState& state) {
    return state.pad_across_processes(torch::ones({state.process_index() + 1}), 0, -1,
                                      /*pad_first=*/true);
  });
  CHECK(torch::equal(first[0], torch::tensor({-1.0f, 1.0f})));
}

TEST_CASE("B36 rows may differ in number: an empty tensor on one rank contributes nothing") {
  for (const auto& rows : on_ranks(2, [](const PartialState& state) {
         return state.gather(torch::ones({state.is_main_process() ? 2 : 0, 4}));
       }))
    CHECK(torch::equal(rows, torch::ones({2, 4})));
  for (const auto& rows : on_ranks(3, [](const PartialState& state) {
         const auto rank = state.process_index();
         return state.gather(torch::full({(rank * 2) % 3}, rank, torch::kBFloat16));
       }))
    CHECK(torch::equal(rows, torch::tensor({1, 1, 2}).to(torch::kBFloat16)));
  for (const auto& rows :
       on_ranks(2, [](const PartialState& state) { return state.gather(torch::ones({0, 4})); }))
    CHECK(rows.sizes() == std::vector<int64_t>{0, 4});
}

TEST_CASE("tensors of any layout arrive as their values") {
  const auto base = torch::arange(24).reshape({4, 6});
  const std::vector<at::Tensor> views{base.t(), base.slice(1, 0, 6, 2), base.narrow(0, 1, 2),
                                      torch::ones({1}).expand({3}), base[2]};
  for (size_t i = 0; i < views.size(); ++i) {
    CAPTURE(i);
    for (const auto& all :
         on_ranks(3, [&](const PartialState& state) { return state.gather(views[i]); }))
      CHECK(torch::equal(all, torch::cat({views[i], views[i], views[i]})));
    for (const auto& sum :
         on_ranks(3, [&](const PartialState& state) { return state.reduce(views[i]); }))
      CHECK(torch::equal(sum, views[i] * 3));
    for (const auto& same : on_ranks(2, [&](const PartialState& state) {
           return state.broadcast(state.is_main_process() ? views[i] : views[i] * 0);
         }))
      CHECK(torch::equal(same, views[i]));
  }
}

TEST_CASE("every dtype is gathered, and every one that adds is reduced") {
  for (const auto type :
       {torch::kBool, torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong,
        torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat}) {
    CAPTURE(type);
    const auto mine = torch::ones({3}, type);
    for (const auto& all :
         on_ranks(2, [&](const PartialState& state) { return state.gather(mine); })) {
      CHECK(all.scalar_type() == type);
      CHECK(torch::equal(all, torch::ones({6}, type)));
    }
    for (const auto& sum :
         on_ranks(2, [&](const PartialState& state) { return state.reduce(mine); }))
      CHECK(torch::equal(sum.to(type), type == torch::kBool ? mine : mine + mine));
  }
}

TEST_CASE("nested values and structs are walked") {
  const auto results = results_of_ranks<Marks>(2, [](const PartialState& state) {
    const auto value = torch::tensor({float(state.process_index())});
    return state.gather(Marks{value, {value + 1, value + 2}});
  });
  for (const auto& scores : results) {
    CHECK(torch::equal(scores.hits, torch::tensor({0.0f, 1.0f})));
    CHECK(torch::equal(scores.losses[1], torch::tensor({2.0f, 3.0f})));
  }
  const auto maps =
      results_of_ranks<std::map<std::string, at::Tensor>>(2, [](const PartialState& state) {
        return state.reduce(
            std::map<std::string, at::Tensor>{{"b", torch::ones({2})}, {"a", torch::ones({})}});
      });
  CHECK(maps[1].at("b").sum().item<float>() == 4);
}

TEST_CASE("a mismatch is a sentence on every rank, with both shapes") {
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         (void)state.gather(torch::ones({2, state.is_main_process() ? 3 : 5}));
       }))
    CHECK_THAT(error, ContainsSubstring("rank 0: Float [2, 3]") &&
                          ContainsSubstring("rank 1: Float [2, 5]") &&
                          ContainsSubstring("pad_across_processes"));
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         (void)state.reduce(
             torch::ones({2}, state.is_main_process() ? torch::kFloat : torch::kDouble));
       }))
    CHECK_THAT(error, ContainsSubstring("Double [2]"));
}

TEST_CASE("a value without a tensor on one rank is a mismatch on every rank") {
  using List = std::vector<at::Tensor>;
  const auto mine = [](const PartialState& state) {
    return state.is_main_process() ? List{} : List(2, torch::ones({3}));
  };
  const std::vector<std::function<void(const PartialState&)>> calls{
      [&](const PartialState& state) { (void)state.gather(mine(state)); },
      [&](const PartialState& state) { (void)state.reduce(mine(state)); },
      [&](const PartialState& state) { (void)state.broadcast(mine(state)); },
      [&](const PartialState& state) { (void)state.pad_across_processes(mine(state)); },
      [](const PartialState& state) {
        (void)state.gather(state.is_main_process() ? std::nullopt
                                                   : std::optional(torch::ones({3})));
      }};
  for (const auto& call : calls)
    for (const auto& error : errors_of_ranks(2, call))
      CHECK_THAT(error, ContainsSubstring("not at the same call") &&
                            ContainsSubstring("of no tensor; rank 1:"));
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         if (!state.gather(List{}).empty()) throw std::runtime_error("a tensor from nowhere");
         (void)state.pad_across_processes(std::map<int, at::Tensor>{});
         if (state.communicator().all_sum(1) != 2) throw std::runtime_error("out of step");
       }))
    CHECK(error.empty());
}

TEST_CASE("a tensor that one rank cannot send is named on every rank") {
  const auto of = [](at::Tensor bad) {
    return [bad](const PartialState& state) {
      return state.is_main_process() ? torch::ones({2, 2}) : bad;
    };
  };
  const std::vector<std::pair<at::Tensor, std::string>> cases{
      {at::Tensor(), "rank 1 gave an undefined one"},
      {torch::eye(2).to_sparse(), "rank 1 gave one of layout Sparse"},
      {torch::empty({2, 2}, at::kMeta), "rank 1 gave one on meta"}};
  for (const auto& [bad, sentence] : cases) {
    const auto mine = of(bad);
    const std::vector<std::function<void(const PartialState&)>> calls{
        [&](const PartialState& state) { (void)state.gather(mine(state)); },
        [&](const PartialState& state) { (void)state.reduce(mine(state)); },
        [&](const PartialState& state) { (void)state.broadcast(mine(state)); },
        [&](const PartialState& state) { (void)state.pad_across_processes(mine(state)); }};
    for (const auto& call : calls)
      for (const auto& error : errors_of_ranks(2, call))
        CHECK_THAT(error, ContainsSubstring("takes dense tensors with values, and " + sentence));
  }
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         (void)state.broadcast(torch::ones({2}), state.is_main_process() ? 0 : 5);
       }))
    CHECK_THAT(error, ContainsSubstring("broadcast from rank 5"));
  const PartialState alone{accel::Communicator(), torch::kCPU};
  CHECK_THROWS_WITH(alone.gather(at::Tensor()), ContainsSubstring("rank 0 gave an undefined one"));
}

TEST_CASE("a group in which ranks cannot tell each other what they call is refused") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 2);
  CHECK_THROWS_WITH(accel::Communicator::over_group(group, {.rank = 0, .size = 2}),
                    ContainsSubstring("no backend for CPU tensors"));
}

TEST_CASE("work is split evenly, the first ranks one longer") {
  const std::vector<int> items{0, 1, 2, 3, 4};
  const auto shares = results_of_ranks<std::vector<int>>(
      3, [&](const PartialState& state) { return state.split_between_processes(items); });
  CHECK(shares == std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4}});
  const auto padded = results_of_ranks<std::vector<int>>(
      3, [&](const PartialState& state) { return state.split_between_processes(items, true); });
  CHECK(padded[2] == std::vector<int>{4, 4});
  const auto rows = on_ranks(4, [](const PartialState& state) {
    return state.split_between_processes(torch::arange(3), true);
  });
  CHECK(torch::equal(rows[3], torch::tensor({2})));
}

TEST_CASE("tables are split by their columns, which have one length") {
  using Map = std::map<std::string, std::vector<int>>;
  const Map map{{"a", {0, 1, 2}}, {"b", {5, 6, 7}}};
  const auto maps = results_of_ranks<Map>(
      2, [&](const PartialState& state) { return state.split_between_processes(map, true); });
  CHECK(maps == std::vector<Map>{{{"a", {0, 1}}, {"b", {5, 6}}}, {{"a", {2, 2}}, {"b", {7, 7}}}});
  CHECK(map.at("a").size() == 3);  // T30: Accelerate cuts the caller's own

  const Scores scores{torch::arange(3), {torch::ones({}), torch::zeros({}), torch::ones({})}, "n"};
  const auto structs = results_of_ranks<Scores>(
      2, [&](const PartialState& state) { return state.split_between_processes(scores); });
  CHECK(torch::equal(structs[1].hits, torch::tensor({2})));
  CHECK(structs[0].losses.size() == 2);
  CHECK(structs[1].note == "n");
  const auto pairs =
      results_of_ranks<std::pair<std::vector<int>, at::Tensor>>(2, [](const PartialState& state) {
        return state.split_between_processes(std::pair(std::vector<int>{1, 2}, torch::arange(2)));
      });
  CHECK(pairs[1].first == std::vector<int>{2});
  CHECK(torch::equal(pairs[1].second, torch::tensor({1})));

  const PartialState alone{accel::Communicator(), torch::kCPU};
  CHECK_THROWS_WITH(alone.split_between_processes(Map{{"a", {0, 1, 2}}, {"b", {5}}}),
                    ContainsSubstring("got columns of 3, 1"));
}

TEST_CASE("the main process goes first, and its failure is everybody's") {
  std::atomic<int> order{0};
  const auto places = results_of_ranks<int>(3, [&](const PartialState& state) {
    int place = -1;
    state.main_process_first([&] { place = order++; });
    return place;
  });
  CHECK(places[0] == 0);
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    state.main_process_first([&] {
      if (state.is_main_process()) throw std::runtime_error("disk full");
    });
  });
  CHECK(errors[0] == "disk full");
  CHECK_THAT(errors[1], ContainsSubstring("has failed there"));
}

TEST_CASE("B29 the roll call names who is missing") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  accel::CommunicatorOptions options;
  options.startup_timeout = std::chrono::milliseconds(300);
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> threads;
    for (int i : {0, 1})
      threads.emplace_back([&, i] {
        try {
          (void)accel::Communicator::over_store(store, {.rank = 2 * i, .size = 3, .local_size = 3},
                                                c10::DeviceType::CPU, options);
        } catch (const accel::Error& error) {
          errors[static_cast<size_t>(i)] = error.what();
        }
      });
  }
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("2 of 3") && ContainsSubstring("missing: {1}"));
}

TEST_CASE("B29 ranks that differ about the world, or claim one place, are told") {
  const auto both = [](accel::Ranks first, accel::Ranks second) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    accel::CommunicatorOptions options;
    options.startup_timeout = std::chrono::milliseconds(2000);
    std::vector<std::string> errors(2);
    std::vector<std::jthread> threads;
    for (size_t i : {0, 1})
      threads.emplace_back([&, i] {
        try {
          (void)accel::Communicator::over_store(store, i == 0 ? first : second,
                                                c10::DeviceType::CPU, options);
        } catch (const accel::Error& error) {
          errors[i] = error.what();
        }
      });
    threads.clear();
    return errors;
  };
  const auto sizes = both({.rank = 0, .size = 2}, {.rank = 1, .size = 3});
  CHECK_THAT(sizes[0] + sizes[1],
             ContainsSubstring("world of 3") && ContainsSubstring("same WORLD_SIZE"));
  const auto claims = both({.rank = 1, .size = 2}, {.rank = 1, .size = 2});
  CHECK_THAT(claims[0] + claims[1], ContainsSubstring("two processes say that they are rank 1"));
}

TEST_CASE("tensors that cannot be sent as they lie are sent resolved, or refused on every rank") {
  const auto complex = torch::complex(torch::ones({2}), torch::ones({2})).conj();
  for (const auto& all :
       on_ranks(2, [&](const PartialState& state) { return state.gather(complex); }))
    CHECK(torch::equal(all, torch::cat({complex, complex})));
  for (const auto& bad : {at::Tensor(), torch::eye(2).to_sparse(), torch::empty({2}, at::kMeta)})
    for (const auto& error :
         errors_of_ranks(2, [&](const PartialState& state) { (void)state.gather(bad); }))
      CHECK_THAT(error, ContainsSubstring("takes dense tensors"));
  for (const auto& error : errors_of_ranks(2, [&](const PartialState& state) {
         (void)state.pad_across_processes(torch::zeros({1 + state.process_index()}, torch::kUInt8),
                                          0, -1e9);
       }))
    CHECK_FALSE(error.empty());
}
