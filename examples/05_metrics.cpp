// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Metrics and validation: a validation loop inside the training, of tensors, a struct of them and
// texts; early stopping that all ranks agree on; the best weights kept.
//
//     build/default/bin/accel-launch --num_processes 2 build/default/bin/05_metrics
//
// Of 203 validation samples on 2 processes some are repeated to make the last round even;
// gather_for_metrics leaves these out, so the counts are those of the dataset.
//
// Expected output on 2 processes:
//     epoch 0: loss 0.5085 over 203 samples, 160 right, hardest 'sample 45'
//     epoch 1: loss 0.3656 over 203 samples, 176 right, hardest 'sample 45'
//     epoch 2: loss 0.2887 over 203 samples, 176 right, hardest 'sample 124'
//     epoch 3: loss 0.2493 over 203 samples, 176 right, hardest 'sample 84'
//     stopped after epoch 3
//     the average of the weights has 177 right
#include <accel/accel.hpp>

#include <boost/hana/define_struct.hpp>

namespace F = torch::nn::functional;

// What a batch is judged by. Boost.Hana lets gather_for_metrics walk it.
struct Judgement {
  BOOST_HANA_DEFINE_STRUCT(Judgement, (at::Tensor, losses), (at::Tensor, hits));
};

struct Report {
  double loss = 0;
  int64_t right = 0, count = 0;
  std::string hardest;
};

// A sample knows its number, so that it can be named.
struct Numbered {
  BOOST_HANA_DEFINE_STRUCT(Numbered, (at::Tensor, x), (at::Tensor, y), (at::Tensor, number));
};

std::vector<Numbered> samples(int64_t count, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<Numbered> all;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = torch::randn({4}, generator);
    const auto noise = 0.5 * torch::randn({}, generator);
    all.push_back({x, (x.sum() + noise > 0).to(torch::kLong), torch::tensor(i)});
  }
  return all;
}

// Every rank calls this and gets the same report.
template <class Accelerator, class Model, class Loader>
Report validate(const Accelerator& accelerator, const Model& model, Loader& loader) {
  model->eval();
  const torch::NoGradGuard no_grad;
  Report report;
  double worst = -1;
  for (auto& batch : loader) {
    const auto logits = model(batch.x);
    Judgement mine{
        F::cross_entropy(logits, batch.y, F::CrossEntropyFuncOptions().reduction(torch::kNone)),
        logits.argmax(1) == batch.y};
    std::vector<std::string> names;
    for (int64_t i = 0; i < batch.number.size(0); ++i)
      names.push_back(fmt::format("sample {}", batch.number[i].template item<int64_t>()));

    const auto all = accelerator.gather_for_metrics(mine);
    const auto all_names = accelerator.gather_for_metrics(names);
    report.loss += all.losses.sum().template item<double>();
    report.right += all.hits.sum().template item<int64_t>();
    report.count += all.hits.size(0);
    if (const auto [most, where] = all.losses.max(0); most.template item<double>() > worst) {
      worst = most.template item<double>();
      report.hardest = all_names.at(static_cast<size_t>(where.template item<int64_t>()));
    }
  }
  report.loss /= static_cast<double>(report.count);
  model->train();
  return report;
}

int main() {
  accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<2>, accel::on<accel::cpu>>
      accelerator;

  accel::set_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 2));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto [model, optimizer, loader, validation] = accelerator.prepare(
      net, adamw, accel::data_loader(samples(800, 1), {.batch_size = 20, .shuffle = true}),
      accel::data_loader(samples(203, 2), {.batch_size = 16}));
  accel::ExponentialMovingAverage average(net.ptr(), 0.9);

  double best = 1e9;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& batch : loader)
      accelerator.accumulate(model, [&] {
        accelerator.backward(F::cross_entropy(model(batch.x), batch.y));
        optimizer.step();
        optimizer.zero_grad();
        if (accelerator.sync_gradients()) average.update();
      });
    const auto report = validate(accelerator, model, validation);
    accelerator.print("epoch {}: loss {:.4f} over {} samples, {} right, hardest '{}'", epoch,
                      report.loss, report.count, report.right, report.hardest);
    // Any rank may want to stop, say because its time is up; all of them hear of it.
    if (report.loss > best - 0.05) accelerator.set_trigger();
    best = std::min(best, report.loss);
    if (accelerator.check_trigger()) {
      accelerator.print("stopped after epoch {}", epoch);
      break;
    }
  }
  const auto applied = average.apply();  // while it lives, the model has the averaged weights
  accelerator.print("the average of the weights has {} right",
                    validate(accelerator, model, validation).right);
}
