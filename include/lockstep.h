/* lockstep.h - all public headers. */
#ifndef LOCKSTEP_H
#define LOCKSTEP_H

#include <lockstep/base.h>
#include <lockstep/checkpoint.h>
#include <lockstep/collective.h>
#include <lockstep/comm.h>
#include <lockstep/context.h>
#include <lockstep/data.h>
#include <lockstep/data_format.h>
#include <lockstep/device.h>
#include <lockstep/environment.h>
#include <lockstep/generate.h>
#include <lockstep/graph.h>
#include <lockstep/huggingface.h>
#include <lockstep/launch.h>
#include <lockstep/mesh.h>
#include <lockstep/model.h>
#include <lockstep/moe.h>
#include <lockstep/nn.h>
#include <lockstep/operation.h>
#include <lockstep/optimizer.h>
#include <lockstep/plan.h>
#include <lockstep/program.h>
#include <lockstep/sampler.h>
#include <lockstep/store.h>
#include <lockstep/tensorboard.h>
#include <lockstep/tokenizer.h>
#include <lockstep/trainer.h>
#include <lockstep/transformer.h>
#include <lockstep/transport.h>

#endif
