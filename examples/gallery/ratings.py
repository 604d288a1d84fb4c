# %% [markdown]
# # From ratings to recommendations with intervals
#
# A table of users, items and stars becomes predictions. The interval of a pair that has few ratings is wide, and on
# ratings that were held out the intervals cover what they promise. [The page on ratings](../ratings.md) has the
# commands of the shell.

# %%
import numpy as np
from matplotlib.figure import Figure

import hamcmc
from hamcmc.factorization.synthetic import movielens_like

ratings = movielens_like(users=400, items=150, ratings=15_000, rank=3, seed=0).ratings
model = hamcmc.factorize(ratings, rank=4, num_samples=80, warmup=20, seed=0, progress=False)
ratings = model.ratings  # with those that it held out
test = ratings.test
mean = np.sqrt(np.mean((ratings.value[test] - ratings.value[~test].mean()) ** 2))
print(f"RMSE {model.rmse():.3f} on held-out ratings; the mean rating alone has {mean:.3f}")

# %%
items, found = model.recommend(ratings.users[0], top=5, clip=True)
for item, mean, low, high in zip(items, found.mean, found.low, found.high):
    print(f"item {item}: {mean:.1f} stars, between {low:.1f} and {high:.1f}")

# %%
levels = np.linspace(0.05, 0.95, 19)
figure = Figure(figsize=(7, 3), layout="constrained")
left, right = figure.subplots(1, 2)
left.plot(levels, model.coverage(levels), "o-", markersize=3)
left.plot([0, 1], [0, 1], color="gray", linewidth=1)
left.set(xlabel="nominal coverage", ylabel="observed coverage")
often = np.bincount(ratings.row[~test], minlength=len(ratings.users))
user = ratings.users[np.argsort(often)[np.linspace(0, len(often) - 1, 60).astype(int)]]
spread = model.predict(user, np.repeat(items[0], len(user))).sd
right.plot(np.sort(often)[np.linspace(0, len(often) - 1, 60).astype(int)], spread, ".")
right.set(xlabel="ratings of the user", ylabel="sd of a prediction")
