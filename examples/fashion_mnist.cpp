// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The main job of tools/quickstart: a small convolutional network learns Fashion-MNIST on any
// number of processes.
//
//     build/default/bin/accel-launch --num_processes 2 build/default/bin/fashion_mnist --epochs 4 --precision bf16
//
// Read `train` first. The strategy is a type there; `main` picks it from the flags, once, before
// anything else happens.
#include <accel/accel.hpp>
#include <accel/runtime.hpp>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <functional>
#include <stdexcept>

namespace nn = torch::nn;
namespace fs = std::filesystem;

struct NetImpl : nn::Module {
  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 16, 5).padding(2)));
  nn::Conv2d conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(16, 32, 5).padding(2)));
  nn::Linear fc1 = register_module("fc1", nn::Linear(32 * 7 * 7, 128));
  nn::Linear fc2 = register_module("fc2", nn::Linear(128, 10));

  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }
};
TORCH_MODULE(Net);

struct Options {
  fs::path data = "/usr/share/datasets/fashion-mnist";
  fs::path run = "runs/fashion_mnist";
  std::string precision = "fp32", resume;
  int64_t epochs = 4, batch_size = 32, accumulation = 2, workers = 0, stop_after = 0;
  uint64_t seed = 42;
  double lr = 2e-3;
};

/// The images of a split. Throws where they are not those that the network is made for.
accel::IdxImages read_images(const fs::path& folder, accel::IdxSplit split) {
  accel::IdxImages images(folder, split, {.mean = 0.286F, .standard_deviation = 0.353F});
  if (images.height() != 28 || images.width() != 28 || images.classes() > 10)
    throw std::invalid_argument(fmt::format(
        "{} holds images of {} x {} with labels up to {}; the network takes 28 x 28 and 10 classes",
        folder.string(), images.height(), images.width(), images.classes() - 1));
  return images;
}

/// Correct answers over the whole test set, and how many there were.
template <class Accelerator, class Model, class Loader>
std::pair<int64_t, int64_t> evaluate(Accelerator& accelerator, Model& model, Loader& loader) {
  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t correct = 0, count = 0;
  for (auto& batch : loader) {
    auto hits = accelerator.gather_for_metrics(model(batch.data).argmax(1) == batch.target);
    correct += hits.sum().template item<int64_t>();
    count += hits.size(0);
  }
  model->train();
  return {correct, count};
}

template <class Accelerator>
int train(const Options& options) {
  accel::AcceleratorOptions setup;
  setup.gradient_accumulation_steps = options.accumulation;
  setup.project_dir = options.run.string();
  setup.log_with = {"all"};
  Accelerator accelerator(setup);

  torch::manual_seed(options.seed);
  Net net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(options.lr));
  auto train_data = accel::data_loader(
      read_images(options.data, accel::IdxSplit::train),
      {.batch_size = options.batch_size, .shuffle = true, .num_workers = int(options.workers)});
  auto test_data =
      accel::data_loader(read_images(options.data, accel::IdxSplit::test), {.batch_size = 250});
  auto [model, optimizer, loader, test_loader] =
      accelerator.prepare(net, adamw, train_data, test_data);

  const int64_t per_epoch = (loader.size() + options.accumulation - 1) / options.accumulation;
  auto schedule = accelerator.prepare(accel::cosine_schedule(adamw, per_epoch * options.epochs));

  if (!options.resume.empty()) accelerator.load_state(options.resume);
  accelerator.init_trackers("", {{"precision", options.precision},
                                 {"processes", accelerator.num_processes()},
                                 {"batch_size", options.batch_size},
                                 {"accumulation", options.accumulation}});
  int64_t step = schedule->last_epoch();
  accelerator.print("{} samples, {} processes of {} threads, {} on {}", loader.dataset().size(),
                    accelerator.num_processes(), at::get_num_threads(), options.precision,
                    c10::str(accelerator.device()));

  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  int64_t samples = 0;
  double accuracy = 0;
  auto window = torch::zeros(
      {2}, torch::TensorOptions(torch::kDouble).device(accelerator.device()));  // loss, samples
  for (int64_t epoch = loader.epoch(); epoch < options.epochs; ++epoch) {
    accel::Progress progress({.total = per_epoch,
                              .description = fmt::format("epoch {}/{}", epoch + 1, options.epochs),
                              .initial = step - epoch * per_epoch,
                              .enabled = accelerator.is_main_process(),
                              .memory = true});
    for (auto& batch : loader) {
      accelerator.accumulate(model, [&] {
        auto loss = nn::functional::cross_entropy(model(batch.data), batch.target);
        accelerator.backward(loss);
        accelerator.clip_grad_norm_(model, 5.0);
        optimizer.step();
        schedule.step();
        optimizer.zero_grad();
        const auto count = batch.target.size(0);
        window += torch::tensor({loss.template item<double>() * double(count), double(count)},
                                window.options());
      });
      if (!accelerator.sync_gradients()) continue;

      ++step;
      progress.update();
      if (step % 10 == 0) {
        const auto total = accelerator.reduce(window).cpu();
        window.zero_();
        samples += total[1].template item<int64_t>();
        const double loss = total[0].template item<double>() / total[1].template item<double>();
        const double rate = std::round(double(samples) / seconds());
        accelerator.log(
            {{"loss", loss}, {"lr", schedule->get_last_lr().front()}, {"samples_per_second", rate}},
            step);
        progress.set_postfix({{"loss", loss}, {"samples/s", rate}});
      }
      if (step == options.stop_after) {
        accelerator.save_state(options.run / "checkpoint");
        return 0;
      }
    }
    progress.close();
    const auto [correct, count] = evaluate(accelerator, model, test_loader);
    accuracy = double(correct) / double(count);
    accelerator.log({{"eval", {{"accuracy", accuracy}, {"samples", count}}}}, step);
    accelerator.print("epoch {}: accuracy {:.4f} on {} samples, {:.0f} s, peak memory {}",
                      epoch + 1, accuracy, count, seconds(),
                      accel::format_bytes(accel::process_memory().peak));
    accelerator.save_state(options.run / "checkpoint");
  }
  accelerator.end_training();
  accelerator.on_main_process([&] {
    accel::write_line_chart(options.run / "loss.svg",
                            {accel::read_series(options.run / "metrics.jsonl", "loss")},
                            {.title = "Fashion-MNIST",
                             .x_label = "optimizer step",
                             .y_label = "loss",
                             .smoothing = 0.6});
  });
  accelerator.print("run folder: {}", options.run.string());
  accelerator.print("accuracy {:.4f}", accuracy);
  return 0;
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small convolutional network on Fashion-MNIST.");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "folder with IDX files, compressed or not");
  app.add_option("--run", options.run, "folder for metrics, events, checkpoint and chart");
  app.add_option("--precision", options.precision, "fp32, bf16 or fp16");
  app.add_option("--epochs", options.epochs)->check(CLI::PositiveNumber);
  app.add_option("--batch_size", options.batch_size, "of one process and one micro-batch");
  app.add_option("--accumulation", options.accumulation, "micro-batches an optimizer step");
  app.add_option("--lr", options.lr, "learning rate at the start")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed);
  app.add_option("--workers", options.workers, "threads that read ahead");
  app.add_option("--resume", options.resume, "state folder to continue from")
      ->always_capture_default(false);
  app.add_option("--stop_after", options.stop_after,
                 "optimizer step to save a state after, and end")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);

  using namespace accel;
  try {
    return visit<Accelerator<ddp, fp32, accumulate<dynamic>>,
                 Accelerator<ddp, bf16, accumulate<dynamic>>,
                 Accelerator<ddp, fp16, accumulate<dynamic>>>(
        {.backend = "ddp", .precision = options.precision, .accumulation = "accumulate<dynamic>"},
        [&]<class A>(std::type_identity<A>) { return train<A>(options); });
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
